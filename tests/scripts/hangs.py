"""Two ranks that train, until one of them holds the other up; the first argument chooses how."""

import ctypes
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

RANK = int(os.environ["RANK"])
AT_STEP = 20


def keeps_training(step):
    time.sleep(0.02)


def sleeps(step):
    if step == AT_STEP and RANK == 1:
        load_shard()


def load_shard():
    time.sleep(1000)


def is_busy(step):
    if step == AT_STEP and RANK == 1:
        tokenize()


def tokenize():
    end = time.monotonic() + 12
    while time.monotonic() < end:
        pass


def keeps_the_lock(step):
    if step == AT_STEP and RANK == 1:
        ctypes.PyDLL(None).sleep(1000)


def mismatches(step):
    if step == AT_STEP:
        part = torch.ones(1_000_000)
        dist.all_reduce(part) if RANK == 0 else dist.barrier()


def leaves_a_group(step):
    if step == AT_STEP:
        pair = dist.new_group([0, 1])
        dist.all_reduce(torch.ones(250), group=pair)
        if RANK == 1:
            load_shard()
        dist.all_reduce(torch.ones(250), group=pair)


def train(at_each_step):
    torch.set_num_threads(1)
    if sys.argv[1] == "never_comes" and RANK == 1:
        load_shard()
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(1000, 250))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1_000_000):
        at_each_step(step)
        optimizer.zero_grad()
        model(torch.ones(4, 1000)).sum().backward()
        optimizer.step()


def ends_out_of_order(step):
    """The first of two takes longer, as one of DDP's buckets may; both are over when rank 1 leaves."""
    if step == AT_STEP:
        works = [dist.all_reduce(torch.ones(size), async_op=True) for size in (10_000_000, 1)]
        for work in works:
            work.wait()
        if RANK == 1:
            load_shard()


if __name__ == "__main__":
    train(globals().get(sys.argv[1], keeps_training))
