"""FSDP2 with a slow rank, as torch's tutorials write it: sharded.py SLEEP_MS. Rank 1 sleeps before every forward."""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("fsdp",))
model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
for layer in (*model, model):
    fully_shard(layer, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    optimizer.zero_grad()
    if dist.get_rank() == 1:
        time.sleep(float(sys.argv[1]) / 1000)
    model(torch.ones(8, 64)).square().mean().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
dist.destroy_process_group()
