"""Two cut layers and a slow rank, as torch's tutorials write tensor parallelism: tensor_parallel.py SLEEP_MS.

Rank 1 sleeps in the middle of every forward, between the two blocks. Prints a digest of each rank's losses and weights.
"""

import hashlib
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

NUM_STEPS = 12
seconds = float(sys.argv[1]) / 1000
dist.init_process_group("gloo")
rank = dist.get_rank()


class Late(nn.Module):
    def forward(self, x):
        if rank == 1:
            time.sleep(seconds)
        return x


def block():
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))


torch.manual_seed(0)
model = nn.Sequential(block(), Late(), block())
mesh = init_device_mesh("cpu", (1, dist.get_world_size()), mesh_dim_names=("dp", "tp"))
for part in (model[0], model[2]):
    parallelize_module(part, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs, targets = torch.randn(8, 16), torch.randn(8, 16)
losses = []
for _ in range(NUM_STEPS):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
state = [*losses, *(value.to_local() if hasattr(value, "to_local") else value for value in model.state_dict().values())]
digest = hashlib.sha256(b"".join(value.contiguous().numpy().tobytes() for value in state)).hexdigest()
digests = [None] * dist.get_world_size()
dist.all_gather_object(digests, digest)
if rank == 0:
    print("DIGESTS", *digests, flush=True)
dist.destroy_process_group()
