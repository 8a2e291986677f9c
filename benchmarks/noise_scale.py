"""The noise scale: what it costs a step, whether its interval holds, and whether short probes find the critical batch.

    python benchmarks/noise_scale.py --out benchmarks/results      # some 10 minutes
    python benchmarks/noise_scale.py --parts cost                  # one part: cost, coverage or critical

cost: two ranks over Gloo, one core each, ResNet-18; every second step is sampled, so that each sampled step is compared
with its neighbour. coverage: weights stand still, many windows, each interval against the average of all of them.
critical: `probe_batch` as a user calls it against a fit with a loop of its own, more sizes, finer rates, more seeds.
Data: official Fashion-MNIST (apt-get install dataset-fashion-mnist), 20,480 images of 14 x 14; without it the last two
parts are left out.
"""

import argparse
import copy
import gzip
import json
import math
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
import torch
from torch import nn
from torch.nn import functional

DATA = Path("/usr/share/datasets/fashion-mnist")
NUM_DRAWS = 2000


def median_interval(values):
    """The median, and the interval that holds 95 % of the medians of resampled values."""
    chance = random.Random(0)
    draws = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(NUM_DRAWS))
    return statistics.median(values), draws[round(0.025 * NUM_DRAWS)], draws[round(0.975 * NUM_DRAWS) - 1]


# what it costs


def cost_rank(pairs, out):
    """One of the two ranks; started by `cost`."""
    from step_models import ResNet18

    import topout
    from topout.train.noise_scale import NoiseScale

    torch.set_num_threads(1)
    ctx = topout.init()
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(ResNet18(), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, fused=True)
    images, labels = torch.randn(16, 3, 16, 16), torch.randint(0, 100, (16,))
    noise = NoiseScale(model, optimizer, ctx.place, batch_size=16, every=2)
    plain, sampled = [], []
    for number in range(2 * pairs + 6):
        start_s = time.perf_counter()
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        if number >= 6:
            (sampled if number % 2 else plain).append(time.perf_counter() - start_s)
    assert len(noise.state_dict()["samples"]) == min(pairs + 3, 50)
    if ctx.is_first:
        Path(out).write_text(json.dumps({"plain": plain, "sampled": sampled}))


def cost(args):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    out = Path(args.work) / "cost.json"
    started = []
    for rank in range(2):
        variables = {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        words = ["taskset", "-c", str(rank), sys.executable, __file__, "--cost-rank", str(args.pairs), str(out)]
        started.append(subprocess.Popen(words, env=os.environ | variables))
    assert [process.wait() for process in started] == [0, 0]
    found = json.loads(out.read_text())
    extras = [1e3 * (more - less) for more, less in zip(found["sampled"], found["plain"], strict=True)]
    step_ms = 1e3 * statistics.median(found["plain"])
    extra, low, high = median_interval(extras)
    shares = [f"{100 * value / 10 / step_ms:.2f} %" for value in (extra, low, high)]
    return [
        "## What it costs",
        "",
        f"ResNet-18 (11.2 M parameters), two ranks over Gloo, a core each, {args.pairs} pairs of neighbouring steps.",
        "",
        "| | median (95 %) |",
        "|---|---|",
        f"| step without | {step_ms:.1f} ms |",
        f"| a sampled step takes longer by | {extra:.2f} ms ({low:.2f} to {high:.2f}) |",
        f"| of the step, at one step in ten | {shares[0]} ({shares[1]} to {shares[2]}) |",
        "",
    ]


# whether its interval holds


def idx(name):
    raw = gzip.decompress((DATA / name).read_bytes())
    shape = [int.from_bytes(raw[4 + 4 * i : 8 + 4 * i], "big") for i in range(raw[3])]
    return torch.from_numpy(np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape).copy())


def fashion(num=20_480):
    images = functional.avg_pool2d(idx("train-images-idx3-ubyte.gz").float().unsqueeze(1) / 255, 2)
    labels = idx("train-labels-idx1-ubyte.gz").long()
    chosen = torch.randperm(60_000, generator=torch.Generator().manual_seed(0))[:num]
    return ((images - images.mean()) / images.std())[chosen].contiguous(), labels[chosen]


def small_cnn(seed=0):
    torch.manual_seed(seed)
    layers = []
    for num_in, num_out, stride in ((1, 16, 1), (16, 32, 2), (32, 64, 2)):
        layers += [nn.Conv2d(num_in, num_out, 3, stride, 1, bias=False), nn.BatchNorm2d(num_out), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 16, 10)).to(memory_format=torch.channels_last)


def loss_of(model, batch):
    images, labels = batch
    return functional.cross_entropy(model(images), labels)


def sgd(parameters):
    return torch.optim.SGD(parameters, 0.05, momentum=0.9)


def samples_at(model, data, num_samples, micro_batch=32, parts=4):
    """The noise scale's own samples at weights that stand still: one rank, four micro-batches."""
    from topout.train.noise_scale import NoiseScale
    from topout.train.place import alone

    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    noise = NoiseScale(model, optimizer, alone(), batch_size=micro_batch, accumulate=parts, every=1, window=num_samples)
    chance = torch.Generator().manual_seed(7)
    for _ in range(num_samples):
        optimizer.zero_grad()
        for part in torch.randint(0, len(data[0]), (parts, micro_batch), generator=chance):
            (loss_of(model, (data[0][part], data[1][part])) / parts).backward()
        optimizer.step()
    noise.state_dict()
    noise.close()
    return list(noise._samples)


def trained(data, steps, batch=128):
    model = small_cnn()
    optimizer = sgd(model.parameters())
    chance = torch.Generator().manual_seed(1)
    for _ in range(steps):
        chosen = torch.randint(0, len(data[0]), (batch,), generator=chance)
        optimizer.zero_grad()
        loss_of(model, (data[0][chosen], data[1][chosen])).backward()
        optimizer.step()
    return model


def coverage(args):
    from topout.train.noise_scale.estimate import estimate

    data = fashion()
    lines = [
        "## Whether its interval holds",
        "",
        f"Small CNN, Fashion-MNIST, weights that stand still; {args.windows} windows of 50 steps, 4 x 32 images each.",
        "The truth is the average of all windows.",
        "",
        "| weights after | long average | covered | interval, median | no upper limit |",
        "|---|---|---|---|---|",
    ]
    for steps in (20, 100, 400):
        samples = samples_at(trained(data, steps), data, 50 * args.windows)
        truth = sum(sample.noise for sample in samples) / sum(sample.signal for sample in samples)
        found = [estimate(samples[first : first + 50]) for first in range(0, len(samples), 50)]
        covered = sum(each.low <= truth <= each.high for each in found)
        low, high = (statistics.median(getattr(each, end) for each in found) for end in ("low", "high"))
        unbounded = sum(math.isinf(each.high) for each in found)
        lines.append(
            f"| {steps} steps | {truth:.0f} | {covered} of {len(found)} ({100 * covered / len(found):.0f} %) "
            f"| {low:.0f} to {high:.0f} | {unbounded} |"
        )
        print(lines[-1], flush=True)
    return [*lines, ""]


# whether short probes find the critical batch


def steps_to(target, model, data, fixed, batch, rate, most_steps, seed):
    """A loop of its own: constant rate, looked at after every step, the mean of looks within a tenth of the way."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9)
    chance = torch.Generator().manual_seed(100 + seed)
    levels, order = [], torch.empty(0, dtype=torch.int64)
    for step in range(1, most_steps + 1):
        while len(order) < batch:
            order = torch.cat([order, torch.randperm(len(data[0]), generator=chance)])
        chosen, order = order[:batch], order[batch:]
        optimizer.zero_grad()
        for part in chosen.split(512):
            (loss_of(model, (data[0][part], data[1][part])) * (len(part) / batch)).backward()
        optimizer.step()
        if step >= 40 and step % (step // 20):
            levels.append(levels[-1])
            continue
        with torch.no_grad():
            levels.append(statistics.fmean(float(loss_of(model, chunk)) for chunk in fixed))
        if not math.isfinite(levels[-1]):
            return None
        near = levels[-max(1, step // 20) :]
        if statistics.fmean(near) <= target:
            return step - (len(near) - 1) / 2
    return None


def full_fit(target, data, args):
    """Steps to the target at more sizes, with rates a factor of 1.41 apart and more seeds; and the fit to them."""
    from topout.train.probe.fit import fit

    model = small_cnn()
    chosen = torch.randperm(len(data[0]), generator=torch.Generator().manual_seed(5))[:2048].split(512)
    fixed = [(data[0][part], data[1][part]) for part in chosen]
    steps_at, rates_at, centre, cap = {}, {}, 0.05 * 2**-1, 400
    for batch in args.full_batches:
        found = {}
        for rate in [centre * 2 ** (half / 2) for half in range(-2, 5)]:
            best = min([statistics.geometric_mean(runs) for runs in found.values()], default=cap)
            runs = []
            for seed in range(args.full_seeds):
                steps = steps_to(target, model, data, fixed, batch, rate, math.ceil(best * 1.3) + 2, seed)
                if steps is None:
                    break
                runs.append(steps)
            if len(runs) == args.full_seeds:
                found[rate] = runs
        if not found:
            continue
        rate = min(found, key=lambda rate: statistics.geometric_mean(found[rate]))
        steps_at[batch], rates_at[batch], centre = found[rate], rate, rate
        cap = statistics.geometric_mean(found[rate]) * 1.3
        print(f"full fit: batch {batch}, rate {rate:.3g}, steps {[round(s, 1) for s in found[rate]]}", flush=True)
    return steps_at, rates_at, fit(steps_at)


def critical(args):
    from topout.train.probe import probe_batch

    data = fashion()
    start_s = time.perf_counter()
    probe = probe_batch(small_cnn(), loss_of, data, optimizer=sgd)
    probe_s = time.perf_counter() - start_s
    print(probe, dict(probe.steps_at), dict(probe.rate_factor_at), f"{probe_s:.0f} s", flush=True)
    steps_at, rates_at, curve = full_fit(probe.target_loss, data, args)
    scale = samples_at(small_cnn(), data, 200)
    simple = sum(sample.noise for sample in scale) / sum(sample.signal for sample in scale)
    middle = [f"{statistics.geometric_mean(runs):.1f}" for runs in steps_at.values()]
    apart = math.inf
    if probe.value and curve.critical:
        apart = max(probe.value / curve.critical, curve.critical / probe.value)
    return [
        "## Whether short probes find the critical batch",
        "",
        f"Small CNN from its first weights to a loss of {probe.target_loss:.3f}. The full fit:",
        f"{args.full_seeds} seeds, 7 rates a size a factor of 1.41 apart.",
        "",
        "| | critical batch | 90 % |",
        "|---|---|---|",
        f"| `probe_batch`, {len(probe.steps_at)} sizes, {probe_s:.0f} s | {probe.value or math.nan:.0f} "
        f"| {probe.low:.0f} to {probe.high:.0f} |",
        f"| full fit, {len(steps_at)} sizes | {curve.critical or math.nan:.0f} | {curve.low:.0f} to {curve.high:.0f} |",
        f"| noise scale at the first weights | {simple:.0f} | |",
        "",
        f"They are a factor of {apart:.2f} apart (1.5 is the aim).",
        "",
        "| batch | " + " | ".join(map(str, steps_at)) + " |",
        "|---" * (len(steps_at) + 1) + "|",
        "| steps, full fit | " + " | ".join(middle) + " |",
        "| rate, full fit | " + " | ".join(f"{rate:.3g}" for rate in rates_at.values()) + " |",
        "| steps, probe | "
        + " | ".join(
            f"{statistics.geometric_mean(probe.steps_at[b]):.1f}" if b in probe.steps_at else "" for b in steps_at
        )
        + " |",
        "",
    ]


PARTS = {"cost": cost, "coverage": coverage, "critical": critical}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--pairs", type=int, default=150)
    parser.add_argument("--windows", type=int, default=60)
    parser.add_argument("--full-seeds", type=int, default=3)
    parser.add_argument("--full-batches", nargs="+", type=int, default=[16, 32, 64, 128, 256, 512, 1024, 2048, 4096])
    parser.add_argument("--machine", default=f"{os.cpu_count()}-cores")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--cost-rank", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.cost_rank:
        cost_rank(int(args.cost_rank[0]), args.cost_rank[1])
        return
    torch.set_num_threads(1)
    lines = [
        "# The gradient noise scale and the critical batch",
        "",
        f"{date.today()}; {args.machine}; torch {torch.__version__}; made by `benchmarks/noise_scale.py`.",
        "",
    ]
    with tempfile.TemporaryDirectory() as args.work:
        for name in args.parts:
            if name != "cost" and not DATA.is_dir():
                lines += [f"{name}: not measured, {DATA} is not there (apt-get install dataset-fashion-mnist).", ""]
                continue
            lines += PARTS[name](args)
            print("\n".join(lines), flush=True)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / f"{date.today()}-noise-scale-{args.machine}.md").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
