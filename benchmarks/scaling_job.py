"""A data-parallel job whose computing is sleep and whose communication is real; run by `benchmarks/scaling.py`.

Each of four blocks sleeps in forward and twice as long in backward, at a pace that changes from step to step and from
rank to rank, then hands a gradient to DDP. So more ranks than cores can be tried: sleeping needs none. For the same
reason gradients are not computed and the optimizer updates one number.
"""

import argparse
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

BLOCKS = 4


class Sleeping(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, gradient, pace, seconds):
        ctx.gradient, ctx.seconds = gradient, 2 * seconds * pace[0]
        time.sleep(seconds * pace[0])
        return x + 0 * weight[0]

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.seconds)
        return gradient, ctx.gradient, None, None, None


class Model(nn.Module):
    def __init__(self, num_bytes, seconds):
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.zeros(num_bytes // 4 // BLOCKS)) for _ in range(BLOCKS))
        self.gradients = [torch.full_like(weight, 1e-6) for weight in self.weights]
        self.shift = nn.Parameter(torch.zeros(1))
        self.seconds = seconds / BLOCKS
        self.pace = [1.0]

    def forward(self, x):
        x = x + self.shift
        for weight, gradient in zip(self.weights, self.gradients, strict=True):
            x = Sleeping.apply(x, weight, gradient, self.pace, self.seconds)
        return x.mean()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--spread", type=float, default=0.05)
    parser.add_argument("--megabytes", type=float, default=1.0)
    parser.add_argument("--forward-ms", type=float, default=15.0)
    parser.add_argument("--steps", type=int, default=80)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    random = np.random.default_rng(1000 + dist.get_rank())
    model = Model(int(args.megabytes * 2**20), args.forward_ms / 1e3)
    wrapped = DistributedDataParallel(model, bucket_cap_mb=args.megabytes / BLOCKS, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD([model.shift], 0.1)
    data = TensorDataset(torch.zeros(16 * args.steps, 1))
    for (x,) in DataLoader(data, 16):
        model.pace[0] = max(0.3, 1 + args.spread * random.standard_normal())
        wrapped.zero_grad()
        wrapped(x).backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
