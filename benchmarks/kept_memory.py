"""What a step on CPUs takes when memory that was freed goes back to the kernel, and when it stays with the process.

    python benchmarks/kept_memory.py --out benchmarks/results        # some 15 minutes

Every way trains the same steps in a process of its own, by turns, so that only ratios within a round count: as Python
starts it, with what `topout run --keep-memory` and `topout.init()` do, with torch's huge pages alone, and with both.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
from datetime import date
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

WAYS = ("as it is", "kept", "huge pages", "kept, huge pages")
KINDS = {
    "resnet50-16": "ResNet-50, 16 images of 224x224",
    "resnet50-48": "ResNet-50, 48 images of 224x224",
    "resnet18": "ResNet-18 for small images, batch 4",
    "transformer": "6 layers of 512, 8 sequences of 256",
    "lengths": "6 layers of 512, 8 sequences of 64 to 256",
}


def make(kind):
    """A function that trains one step."""
    import torch
    from step_models import make as make_small
    from torch import nn
    from torch.nn import functional

    from topout.recipes.resnet50_model import resnet50

    torch.manual_seed(0)
    lengths = random.Random(0)
    if kind.startswith("resnet50"):
        model, batch = resnet50(), int(kind.partition("-")[2])
        images, labels = torch.randn(batch, 3, 224, 224), torch.randint(0, 1000, (batch,))
    elif kind == "resnet18":
        model, images, labels = make_small(kind)
    else:
        layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
        model = nn.Sequential(nn.TransformerEncoder(layer, 6), nn.Linear(512, 1000))
        images, labels = torch.randn(8, 256, 512), torch.randint(0, 1000, (8, 256))
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)

    def step():
        given, wanted = images, labels
        if kind == "lengths":
            length = lengths.randint(64, 256)
            given, wanted = images[:, :length], labels[:, :length]
        optimizer.zero_grad()
        functional.cross_entropy(model(given).flatten(0, -2), wanted.flatten()).backward()
        optimizer.step()

    return step


def train(kind, way, num_steps):
    import resource
    import time

    from topout.record import kept_memory

    if way.startswith("kept"):
        assert kept_memory.keep() is None
    step = make(kind)
    for _ in range(2):
        step()
    before, start_s = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    times_s = []
    for _ in range(num_steps):
        step()
        now_s = time.perf_counter()
        times_s.append(now_s - start_s)
        start_s = now_s
    after = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({
        "step_s": statistics.fmean(times_s),
        "faults": (after.ru_minflt - before.ru_minflt) / num_steps,
        "kernel_s": (after.ru_stime - before.ru_stime) / num_steps,
        "peak_bytes": after.ru_maxrss << 10,
    }))  # fmt: skip


def measured(kind, way, num_steps):
    words = [sys.executable, __file__, "--train", kind, way, str(num_steps)]
    huge = {"THP_MEM_ALLOC_ENABLE": "1"} if way.endswith("huge pages") else {}
    done = subprocess.run(words, env=os.environ | huge, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def section(kind, found):
    lines = [
        f"## {KINDS[kind]}", "",
        "| way | step | of the step as it is | page faults | in the kernel | peak memory |",
        "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for way in WAYS:
        rows = found[way]
        ratios = [row["step_s"] / plain["step_s"] for row, plain in zip(rows, found[WAYS[0]], strict=True)]
        middle = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
        lines.append(
            f"| {way} | {middle['step_s']:.3f} s | {statistics.median(ratios):.3f} "
            f"({min(ratios):.3f} to {max(ratios):.3f}) | {middle['faults']:,.0f} | {middle['kernel_s']:.2f} s "
            f"| {middle['peak_bytes'] / 2**30:.2f} GiB |"
        )
    return "\n".join(lines)


def main():
    if sys.argv[1:2] == ["--train"]:
        train(sys.argv[2], sys.argv[3], int(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8, help="that the steps of one turn take, about")
    parser.add_argument("--machine", default=f"{os.cpu_count()}-cores")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    parts = [
        "# Memory that is given back in every step",
        f"{date.today()}; {args.machine}; {args.rounds} rounds; made by `benchmarks/kept_memory.py`.",
        "Medians, and of ratios within a round the least and the largest.",
        "",
    ]
    for kind in args.kinds:
        found = {way: [] for way in WAYS}
        num_steps = max(2, round(args.seconds / measured(kind, WAYS[0], 2)["step_s"]))
        for turn in range(args.rounds):
            for way in random.Random(turn).sample(WAYS, len(WAYS)):
                found[way].append(measured(kind, way, num_steps))
        parts += [section(kind, found), ""]
        print(parts[-2], flush=True)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / f"{date.today()}-kept-memory-{args.machine}.md").write_text("\n".join(parts))


if __name__ == "__main__":
    main()
