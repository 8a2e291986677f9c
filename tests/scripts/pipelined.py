"""A pipeline whose stages sleep instead of computing, as torch's tutorials write one: pipelined.py SCHEDULE M SLEEP_MS.

Backward sleeps twice as long as forward. Prints a digest of each rank's losses and weights.
"""

import hashlib
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class

NUM_STEPS = 5


class Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        time.sleep(2 * ctx.seconds)
        return grad, None


class Stage(nn.Module):
    def __init__(self, seconds):
        super().__init__()
        self.linear, self.seconds = nn.Linear(8, 8), seconds

    def forward(self, x):
        return Sleep.apply(torch.tanh(self.linear(x)), self.seconds)


schedule_name, num_microbatches, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]) / 1000
dist.init_process_group("gloo")
rank, num_ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
module = Stage(seconds)
stage = PipelineStage(module, rank, num_ranks, torch.device("cpu"))
schedule = get_schedule_class(schedule_name)(stage, num_microbatches, loss_fn=nn.MSELoss())
optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
torch.manual_seed(0)
inputs, targets = torch.randn(4 * num_microbatches, 8), torch.randn(4 * num_microbatches, 8)
losses = []
for _ in range(NUM_STEPS):
    optimizer.zero_grad()
    if rank == 0:
        schedule.step(inputs)
    elif rank == num_ranks - 1:
        schedule.step(target=targets, losses=losses)
    else:
        schedule.step()
    optimizer.step()
state = [*(loss.detach() for loss in losses), *module.state_dict().values()]
digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in state)).hexdigest()
digests = [None] * dist.get_world_size()
dist.all_gather_object(digests, digest)
if rank == 0:
    print("DIGESTS", *digests, flush=True)
dist.destroy_process_group()
