"""A small DDP training for tests of launching: prints where it runs and a loss that needs both ranks.

Usage: two_hosts.py [STEPS] [FAULT], where FAULT is fail:RANK, exit:RANK or slow:RANK.
"""

import os
import socket
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 3
FAULT, _, CULPRIT = (sys.argv[2] if len(sys.argv) > 2 else "").partition(":")
IS_CULPRIT = bool(CULPRIT) and int(os.environ["RANK"]) == int(CULPRIT)

torch.manual_seed(0)
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with open(f"pid-{dist.get_rank()}", "w") as file:
    file.write(f"{os.getpid()} {socket.gethostname()}")
for step in range(STEPS):
    if step == 2 and IS_CULPRIT and FAULT == "fail":
        raise ValueError("planted")
    if step == 2 and IS_CULPRIT and FAULT == "exit":
        sys.exit(7)
    if IS_CULPRIT and FAULT == "slow":
        time.sleep(0.05)
    generator = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
    loss = model(torch.randn(8, 64, generator=generator)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
total = loss.detach().clone()
dist.all_reduce(total)
print(
    f"rank {dist.get_rank()} of {dist.get_world_size()} on {socket.gethostname()}",
    f"loss {total.item():.6f}",
    sep=": ",
    flush=True,
)
