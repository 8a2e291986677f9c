"""Trains a little from a pack through topout.Loader; the first argument is the pack."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn

import topout
from topout.feed.augment import train_images

loader = topout.Loader(sys.argv[1], 4, transform=train_images(16), last="drop")
model: nn.Module = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 4))
if int(os.environ.get("WORLD_SIZE", "1")) > 1:
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(2):
    for images, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
print("position", loader.state_dict()["epoch"], loader.counters()["samples"])
