"""Steps a second of the Horovod face against plain DDP, interleaved in one pair of processes over Gloo.

    python benchmarks/horovod_face.py [--rounds 8] [--steps 6] [--model resnet18|deep]

Starts its own 2 ranks on this machine. Both train copies of one model on the same batches; rounds alternate, so that
whatever else the machine does hits both. Not a measure of the machine: only the ratio means anything.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

REPOSITORY = Path(__file__).resolve().parents[1]
NUM_RANKS = 2


def resnet18():
    """11.2 M parameters in 62 tensors, on images so small that communication matters."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        def __init__(self, num_in, num_out, stride):
            super().__init__()
            self.first = nn.Conv2d(num_in, num_out, 3, stride, 1, bias=False)
            self.first_norm = nn.BatchNorm2d(num_out)
            self.second = nn.Conv2d(num_out, num_out, 3, 1, 1, bias=False)
            self.second_norm = nn.BatchNorm2d(num_out)
            self.short = nn.Identity()
            if stride != 1 or num_in != num_out:
                self.short = nn.Sequential(nn.Conv2d(num_in, num_out, 1, stride, bias=False), nn.BatchNorm2d(num_out))

        def forward(self, x):
            inner = functional.relu(self.first_norm(self.first(x)))
            return functional.relu(self.second_norm(self.second(inner)) + self.short(x))

    widths = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2),
              (512, 512, 1)]  # fmt: skip
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(), *(Block(*width) for width in widths),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 100),
    )  # fmt: skip
    return model, lambda: torch.randn(4, 3, 8, 8)


def deep():
    """0.42 M parameters in 202 small tensors: what costs here is the number of calls."""
    import torch
    from torch import nn

    layers = [layer for _ in range(100) for layer in (nn.Linear(64, 64), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(64, 100)), lambda: torch.randn(32, 64)


MODELS = {"resnet18": resnet18, "deep": deep}


def one_rank(arguments) -> None:
    import copy

    import horovod.torch as hvd
    import torch
    from torch.nn import functional
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    hvd.init()
    torch.manual_seed(0)
    model, make_input = MODELS[arguments.model]()
    twins = {"horovod": model, "DDP": copy.deepcopy(model)}
    optimizers = {name: torch.optim.SGD(twin.parameters(), lr=0.001, momentum=0.9) for name, twin in twins.items()}
    optimizers["horovod"] = hvd.DistributedOptimizer(
        optimizers["horovod"], named_parameters=twins["horovod"].named_parameters()
    )
    twins["DDP"] = DistributedDataParallel(twins["DDP"])

    cpu_seconds = {name: [] for name in twins}

    def train(name: str, num_steps: int) -> float:
        hvd.barrier()
        start, start_cpu = time.perf_counter(), time.process_time()
        for _ in range(num_steps):
            inputs = make_input()
            labels = torch.randint(0, 100, (inputs.shape[0],))
            optimizers[name].zero_grad()
            functional.cross_entropy(twins[name](inputs), labels).backward()
            optimizers[name].step()
        hvd.barrier()
        cpu_seconds[name].append((time.process_time() - start_cpu) / num_steps)
        return (time.perf_counter() - start) / num_steps

    for name in twins:
        train(name, 3)
    seconds = {name: [] for name in twins}
    for round_number in range(arguments.rounds):
        for name in (list(twins), list(twins)[::-1])[round_number % 2]:
            seconds[name].append(train(name, arguments.steps))
    if hvd.rank() == 0:
        ratios = sorted(ddp / face for ddp, face in zip(seconds["DDP"], seconds["horovod"], strict=True))
        print(json.dumps({
            "model": arguments.model,
            "DDP ms": round(1e3 * median(seconds["DDP"]), 2),
            "horovod ms": round(1e3 * median(seconds["horovod"]), 2),
            "steps/s of DDP, median of rounds": round(median(ratios), 3),
            "lowest and highest round": [round(ratios[0], 3), round(ratios[-1], 3)],
            "CPU time of DDP": round(median(cpu_seconds["DDP"]) / median(cpu_seconds["horovod"]), 3),
            "groups": optimizers["horovod"]._engine.num_groups,
        }))  # fmt: skip


def start_ranks() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    face = REPOSITORY / "topout" / "train" / "horovod" / "face"
    common = {
        **os.environ, "WORLD_SIZE": str(NUM_RANKS), "LOCAL_WORLD_SIZE": str(NUM_RANKS), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{REPOSITORY}:{face}",
    }  # fmt: skip
    ranks = [
        subprocess.Popen([sys.executable, *sys.argv], env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(NUM_RANKS)
    ]
    return max(rank.wait() for rank in ranks)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--model", choices=MODELS, default="resnet18")
    chosen = parser.parse_args()
    if "RANK" in os.environ:
        one_rank(chosen)
    else:
        sys.exit(start_ranks())
