"""What a wrapper costs where nothing else does: a tiny model on two ranks, plain DDP, topout, Fabric and Accelerate.

    python benchmarks/wrapper.py --out benchmarks/results        # some minutes

All ways in one pair of processes, by turns in random order, each with a DataLoader as its users write it. Needs
lightning and accelerate (extra dev).
"""

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from datetime import date
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

NUM_SAMPLES, BATCH = 3200, 8


def on_rank(rounds, out):
    import torch
    import torch.distributed as dist
    from step_models import tiny
    from torch.nn import functional
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    import topout

    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    ctx = topout.init()
    data = TensorDataset(torch.randn(NUM_SAMPLES, 64), torch.randint(0, 100, (NUM_SAMPLES,)))

    def parts():
        torch.manual_seed(0)
        model = tiny()
        return model, torch.optim.SGD(model.parameters(), 0.01)

    def epoch(model, optimizer, loader, backward=lambda loss: loss.backward()):
        for x, y in loader:
            optimizer.zero_grad()
            backward(functional.cross_entropy(model(x), y))
            optimizer.step()

    def plain():
        model, optimizer = parts()
        loader = DataLoader(data, BATCH, sampler=DistributedSampler(data))
        model = DistributedDataParallel(model)
        return lambda: epoch(model, optimizer, loader)

    def ours():
        model, optimizer, loader = ctx.wrap(*parts(), DataLoader(data, BATCH, shuffle=True))
        return lambda: epoch(model, optimizer, loader)

    def with_fabric():
        from lightning.fabric import Fabric

        fabric = Fabric(accelerator="cpu", devices=dist.get_world_size(), strategy="ddp")
        fabric.launch()
        model, optimizer = fabric.setup(*parts())
        loader = fabric.setup_dataloaders(DataLoader(data, BATCH, shuffle=True))
        return lambda: epoch(model, optimizer, loader, fabric.backward)

    def with_accelerate():
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True)
        model, optimizer, loader = accelerator.prepare(*parts(), DataLoader(data, BATCH, shuffle=True))
        return lambda: epoch(model, optimizer, loader, accelerator.backward)

    makers = {"plain DDP": plain, "plain DDP again": plain, "topout": ours, "Fabric": with_fabric}
    makers["Accelerate"] = with_accelerate
    ways = {name: make() for name, make in makers.items()}
    for way in ways.values():
        way()
    times = {name: [] for name in ways}
    chance = random.Random(0)
    for _ in range(rounds):
        for name in chance.sample(list(ways), len(ways)):
            dist.barrier()
            start_s = time.perf_counter()
            ways[name]()
            times[name].append(time.perf_counter() - start_s)
    if ctx.is_first:
        Path(out).write_text(json.dumps(times))


def measured(rounds):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "times.json"
        words = [sys.executable, __file__, "--rounds", str(rounds), "--on-rank", str(out)]
        shared = {
            "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": folder, "TORCHELASTIC_RUN_ID": "benchmark",
            "GROUP_RANK": "0", "LOCAL_ADDR": "127.0.0.1",
        }  # fmt: skip
        started = [
            subprocess.Popen(
                ["taskset", "-c", str(rank), *words],
                env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(2)
        ]
        assert [process.wait() for process in started] == [0, 0]
        return json.loads(out.read_text())


def table(times, machine, rounds):
    from step import ratio

    steps = NUM_SAMPLES // BATCH // 2
    lines = [
        "# What a wrapper costs a tiny step",
        f"{date.today()}; {machine}; two ranks over Gloo, one core each; MLP 64-64-100, batch {BATCH}, DataLoader;",
        f"{rounds} rounds of an epoch of {steps} steps; made by `benchmarks/wrapper.py`.",
        "",
        "| way | steps/s (median) | of plain DDP's (95 % interval) |",
        "|---|---|---|",
    ]
    for name, seconds in times.items():
        middle, low, high = ratio(times["plain DDP"], seconds)
        lines.append(
            f"| {name} | {steps / sorted(seconds)[len(seconds) // 2]:,.0f} | {middle:.3f} ({low:.3f} to {high:.3f}) |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--machine", default=f"{os.cpu_count()}-cores")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--on-rank", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.on_rank:
        on_rank(arguments.rounds, arguments.on_rank)
    else:
        text = table(measured(arguments.rounds), arguments.machine, arguments.rounds)
        print(text)
        if arguments.out:
            arguments.out.mkdir(parents=True, exist_ok=True)
            (arguments.out / f"{date.today()}-wrapper-{arguments.machine}.md").write_text(text)
