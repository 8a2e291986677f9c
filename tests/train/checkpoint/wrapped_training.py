"""A training of what topout gives a script: a wrapped model, a loader with workers, checkpoints of the context.

    wrapped_training.py '{"folder": "checkpoints", "epochs": 2}'

Without `epochs` it goes on until somebody ends it. Prints on its last line a digest of the parameters, the step
it began at, and the samples of each epoch that this rank has seen.
"""

import hashlib
import itertools
import json
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import topout

NUM_SAMPLES, BATCH = 240, 3
"""Of two ranks, three or one: no epoch leaves fewer samples than there are ranks."""


class Noisy(Dataset):
    """Each sample its number, and what its worker's generator gives."""

    def __len__(self):
        return NUM_SAMPLES

    def __getitem__(self, number):
        return number, torch.rand(64) + number


def main(folder, epochs=None, every=1):
    torch.set_num_threads(1)
    ctx = topout.init()
    torch.manual_seed(1)
    # more than DDP's first group of 1 MiB
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Noisy(), batch_size=BATCH, shuffle=True, num_workers=2)
    model, optimizer, loader = ctx.wrap(model, optimizer, loader)
    checkpoints = ctx.checkpoint(folder, every=every)
    began_at = checkpoints.num_steps
    seen = {}
    print("ready", flush=True)
    for epoch in itertools.count(loader.state_dict()["epoch"]):
        if epoch == epochs:
            break
        for numbers, inputs in loader:
            seen.setdefault(epoch, []).extend(numbers.tolist())
            optimizer.zero_grad()
            model(inputs / NUM_SAMPLES).square().mean().backward()
            optimizer.step()
            checkpoints.step()
    checkpoints.close()
    values = b"".join(bytes(parameter.detach().numpy()) for parameter in model.parameters())
    print(json.dumps({"digest": hashlib.sha256(values).hexdigest(), "from": began_at, "seen": seen}), flush=True)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
