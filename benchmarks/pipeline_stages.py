"""The job that benchmarks/pipeline.py records: a pipeline as torch's tutorials write one, knowing nothing of topout.

    topout run -n 4 benchmarks/pipeline_stages.py SCHEDULE MICROBATCHES CHUNKS STEPS SLEEP_MS

With SLEEP_MS 0 the stages compute (linear layers, one thread each). Otherwise they sleep, forward once and backward
twice as long, so that a machine of two cores can hold any number of them; zero-bubble schedules sleep once for the
gradients of inputs and once for those of weights.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class

WIDTH, LAYERS, MICROBATCH = 768, 4, 256
SPLITS_BACKWARD = ("InterleavedZeroBubble", "ZBVZeroBubble")


class Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, forward_s, backward_s):
        ctx.backward_s = backward_s
        time.sleep(forward_s)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        time.sleep(ctx.backward_s)
        return grad, None, None


class SleepingStage(nn.Module):
    def __init__(self, forward_s, backward_s):
        super().__init__()
        self.linear, self.forward_s, self.backward_s = nn.Linear(8, 8), forward_s, backward_s

    def forward(self, x):
        return Sleep.apply(self.linear(x), self.forward_s, self.backward_s)


class ComputingStage(nn.Module):
    def __init__(self):
        super().__init__()
        # without it the first stage would need no gradient of its input, and have less to do than the others
        self.shift = nn.Parameter(torch.zeros(WIDTH))
        self.layers = nn.Sequential(*(part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())))

    def forward(self, x):
        return self.layers(x + self.shift)


def held_by(rank, num_ranks, chunks, schedule):
    """Stages of a rank: round and round, or down and up again where the schedule is a V."""
    if schedule == "ZBVZeroBubble":
        return [rank, 2 * num_ranks - 1 - rank]
    return [rank + turn * num_ranks for turn in range(chunks)]


def main():
    name, microbatches, chunks, num_steps = sys.argv[1], *map(int, sys.argv[2:5])
    seconds = float(sys.argv[5]) / 1000
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    num_stages = num_ranks * chunks
    is_split = name in SPLITS_BACKWARD
    stages = []
    for number in held_by(rank, num_ranks, chunks, name):
        module = SleepingStage(seconds, seconds if is_split else 2 * seconds) if seconds else ComputingStage()
        later = {"dw_builder": lambda: lambda: time.sleep(seconds)} if is_split and seconds else {}
        stages.append(PipelineStage(module, number, num_stages, torch.device("cpu"), **later))
    schedule = get_schedule_class(name)
    parts = stages if issubclass(schedule, torch.distributed.pipelining.schedules.PipelineScheduleMulti) else stages[0]
    pipeline = schedule(parts, microbatches, loss_fn=nn.MSELoss())
    optimizer = torch.optim.SGD([p for stage in stages for p in stage.submod.parameters()], lr=1e-3)
    shape = (microbatches, 8) if seconds else (microbatches * MICROBATCH, WIDTH)
    inputs, targets = torch.randn(shape), torch.randn(shape)
    is_first, is_last = any(stage.is_first for stage in stages), any(stage.is_last for stage in stages)
    for _ in range(num_steps):
        optimizer.zero_grad()
        pipeline.step(*([inputs] if is_first else []), **({"target": targets, "losses": []} if is_last else {}))
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
