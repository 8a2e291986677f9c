"""Rank 1 has two batches more than rank 0, and both join; with `own`, a compression of the script's own."""

import json
import sys

import horovod.torch as hvd
import torch
from torch import nn

from topout.schema.errors import TopoutError


class Own(hvd.Compression.none):
    """Not one of Horovod's."""


hvd.init()
torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(20, 4, sparse=True), nn.Flatten(), nn.Linear(12, 2))
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), 0.1), compression=Own if "own" in sys.argv else hvd.Compression.none
)
if "own" in sys.argv:
    try:
        hvd.join()
    except TopoutError as error:
        print(json.dumps(error.problem))
    sys.exit()
for step in range(2 + 2 * hvd.rank()):
    optimizer.zero_grad()
    torch.manual_seed(10 * step + hvd.rank())
    model(torch.randint(0, 20, (8, 3))).square().mean().backward()
    optimizer.step()
last = hvd.join()
weights = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
print(json.dumps({"last": last, "own": hvd.rank(), "weights": weights.tolist()}))
