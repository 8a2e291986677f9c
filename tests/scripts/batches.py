"""Trains three epochs of 64 samples on whatever ranks there are; the first argument says how batches are made.

Prints the batch of training and of the evaluation, and fails like a full device from `OUT_OF_MEMORY_AT` samples on.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler

KIND = sys.argv[1] if len(sys.argv) > 1 else "distributed"
SAMPLES = TensorDataset(torch.randn(int(os.environ.get("SAMPLES", "64")), 8))


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.randn(64, 8))


def training_loader():
    if KIND == "shuffle":
        return DataLoader(SAMPLES, 4, True)
    if KIND == "in_order":
        return DataLoader(SAMPLES, batch_size=4)
    if KIND == "batch_sampler":
        return DataLoader(SAMPLES, batch_sampler=BatchSampler(RandomSampler(SAMPLES), 4, drop_last=False))
    if KIND == "iterable":
        return DataLoader(Stream(), batch_size=4)
    return DataLoader(SAMPLES, batch_size=4, sampler=DistributedSampler(SAMPLES))


dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader, evaluation = training_loader(), DataLoader(SAMPLES, batch_size=16)
limit = int(os.environ.get("OUT_OF_MEMORY_AT", "0"))
for _ in range(3):
    for batch in loader:
        x = batch[0] if isinstance(batch, list) else batch
        if limit and len(x) >= limit:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
if dist.get_rank() == 0:
    steps = f"{len(loader)} a rank" if KIND != "iterable" else "no length"
    print("training", loader.batch_size, steps, "evaluation", len(next(iter(evaluation))[0]))
