"""A training as users write it, small: dropout, BatchNorm, a schedule, and a loader that any number of ranks share.

    training.py '[{"folder": "checkpoints", "steps": 11}, ...]'

One `Run` after the other in one process, since to start one costs seconds. Prints on its last line, for each: a digest
of all parameters and buffers, the samples this rank has seen, and what it would draw next.
"""

import hashlib
import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from topout.train.checkpoint import Checkpoints
from topout.train.place import alone, joined

NUM_SAMPLES, BATCH = 24, 2


class Loader:
    """Samples of an epoch in a fixed order; the state is a position in it, whatever the number of ranks."""

    def __init__(self, rank, world_size):
        self.rank, self.world_size, self.epoch, self.position = rank, world_size, 0, 0

    def next(self):
        if self.position >= NUM_SAMPLES:
            self.epoch, self.position = self.epoch + 1, 0
        order = np.random.default_rng(self.epoch).permutation(NUM_SAMPLES)
        share = order[self.position : self.position + BATCH * self.world_size][self.rank :: self.world_size]
        self.position += BATCH * self.world_size
        return share.tolist()

    def state_dict(self):
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state):
        self.epoch, self.position = state["epoch"], state["position"]


def built(run, place):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 3))
    if run.sharded:
        from torch.distributed.fsdp import fully_shard

        fully_shard(model)
    elif place.world_size > 1:
        model = nn.parallel.DistributedDataParallel(model)
    torch.manual_seed(place.rank)
    np.random.seed(place.rank)
    return model


def digest(model):
    from torch.distributed.tensor import DTensor

    values = [value.full_tensor() if isinstance(value, DTensor) else value for value in model.state_dict().values()]
    return hashlib.sha256(b"".join(bytes(value.detach().contiguous().numpy()) for value in values)).hexdigest()


def kill_once(run, rank, step):
    """Ends this process where `kill` says so, unless a file tells that it did so before."""
    done = Path(f"{run.folder}-killed-{rank}-{step}")
    if f"{rank}:{step}" in run.kill and not done.exists():
        done.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def train(run, place):
    model = built(run, place)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [5, 9])
    loader = Loader(place.rank, place.world_size)
    state = {"model": model, "optimizer": optimizer, "schedule": schedule, "loader": loader}
    checkpoints = Checkpoints(run.folder, state=state, place=place, every=run.every)
    restored = checkpoints.restore()
    seen = []
    print("ready", flush=True)
    while checkpoints.num_steps < run.steps:
        samples = loader.next()
        seen.append(samples)
        inputs = torch.tensor(samples, dtype=torch.float32)[:, None] * torch.ones(8) + torch.randn(len(samples), 8)
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        schedule.step()
        checkpoints.step()
        time.sleep(run.sleep)
        kill_once(run, place.rank, checkpoints.num_steps)
    checkpoints.close()
    return {
        "digest": digest(model), "seen": seen, "from": restored.step if restored else 0, "lr": schedule.get_last_lr(),
        "draws": [torch.rand(1).item(), float(np.random.random())],
    }  # fmt: skip


@dataclass
class Run:
    folder: str
    steps: int
    sharded: bool = False
    alone: bool = False
    """Rank 0 by itself, as a world of one."""
    every: int = 2
    sleep: float = 0
    kill: tuple[str, ...] = ()
    """RANK:STEP"""


def main():
    torch.set_num_threads(1)
    everyone = alone()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("gloo")
        everyone = joined(torch.device("cpu"), local_rank=0, local_world_size=1)
    results = []
    for given in json.loads(sys.argv[1]):
        run = Run(**given)
        takes_part = everyone.is_first or not run.alone
        results.append(train(run, alone() if run.alone else everyone) if takes_part else None)
        if everyone.world_size > 1:
            dist.barrier()
    print(json.dumps(results), flush=True)


if __name__ == "__main__":
    main()
