"""Trains with DDP until it is told to stop, as many times as there are pages, and says at which call that was.

STOPS holds a list of what TOPOUT_STOP_PAGE says in each session; the answers go to the file named by ANSWERS.
"""

import datetime
import json
import os
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from topout.api.preemption import should_stop
from topout.record.preemption import PAGE_VARIABLE, adopt_page

torch.set_num_threads(1)
# a rank that stops alone leaves its peers in an all-reduce; they say so instead of waiting half an hour
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=30))
rank = dist.get_rank()
model = DDP(nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
draw = random.Random(rank)
answers = []
for text in json.loads(os.environ["STOPS"]):
    os.environ[PAGE_VARIABLE] = text
    adopt_page()
    calls = 0
    while True:
        for _ in range(int(draw.expovariate(1 / 2000))):
            pass  # ranks are not equally fast
        loss = model(torch.randn(4, 8)).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        calls += 1
        if should_stop():
            break
    answers.append(calls)
    dist.barrier()
with open(os.environ["ANSWERS"], "w") as file:
    json.dump(answers, file)
dist.destroy_process_group()
