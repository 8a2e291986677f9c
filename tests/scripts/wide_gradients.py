"""A DDP loop whose gradients (24 MB) take far longer over 1 Gbit/s than its arithmetic.

Usage: wide_gradients.py STEPS
"""

import sys

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(1024, 3000), nn.ReLU(), nn.Linear(3000, 1000)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(int(sys.argv[1])):
    optimizer.zero_grad()
    model(torch.randn(4, 1024)).pow(2).mean().backward()
    optimizer.step()
