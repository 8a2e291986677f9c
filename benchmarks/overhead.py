"""What recording costs a step: blocks with and without topout in one process, in random order, beside its peers.

    python benchmarks/overhead.py --out benchmarks/results            # about 20 minutes on two cores
    python benchmarks/overhead.py --rounds 20                         # a quick look

A round runs one block of each configuration in random order; its figure is the block's mean step over the mean of the
round's two `off` blocks. The machine's noise is larger than the effect, so hundreds of rounds are taken and the bound
is a bootstrap over rounds. `off again` against `off` is what noise alone gives. traceml patches torch for good, so it
has a process of its own, with its own `off`. In `off` blocks every attribute that topout replaced is put back; the
audit hook cannot be, and is timed by itself.
"""

import argparse
import contextlib
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

BLOCK_STEPS = 50
SIZES = {"2.5 ms": 2.5, "10 ms": 10.0}
"""Step times to aim at; the batch is chosen for them on the day's machine, and the measured step is in the results."""
WIDTH, LAYERS = 192, 8


# ---- one process: builds a loop and times blocks of it


def build_loop(size, device):
    """A model and a function that trains one block of it, with a batch that makes a step take about `size`."""
    batch = 48
    for _ in range(4):
        model, block = loop_of(batch, device)
        block()
        step_ms = min(block() for _ in range(3)) * 1e3
        if abs(step_ms / SIZES[size] - 1) < 0.1:
            break
        batch = max(4, round(batch * (1 + 0.8 * (SIZES[size] / step_ms - 1))))
    return model, block


def loop_of(batch, device):
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    torch.set_num_threads(1)
    if device == "cuda":
        layers = [nn.Conv2d(64, 64, 3, padding=1) for _ in range(LAYERS)]
        model = nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(10)).cuda()
        model(torch.zeros(1, 64, 32, 32, device="cuda"))
        shape = (64, 32, 32)
    else:
        layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True))]
        model = nn.Sequential(*layers, nn.Linear(WIDTH, 10))
        shape = (WIDTH,)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    if device == "cuda":  # batches as they are, so that the step is the device's and not the collation's
        given = (torch.randn(batch, *shape), torch.randint(0, 10, (batch,)))
        loader = DataLoader([given] * BLOCK_STEPS, batch_size=None)
    else:
        num = batch * BLOCK_STEPS
        data = TensorDataset(torch.randn(batch, *shape).repeat(BLOCK_STEPS, 1), torch.randint(0, 10, (num,)))
        loader = DataLoader(data, batch_sampler=[list(range(i, i + batch)) for i in range(0, num, batch)])
    lossf = nn.CrossEntropyLoss()

    def block(around_step=contextlib.nullcontext):
        start = time.perf_counter()
        for x, y in loader:
            with around_step():
                optimizer.zero_grad()
                lossf(model(x.to(device)), y.to(device)).backward()
                optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - start) / BLOCK_STEPS

    return model, block


class Taps:
    """Everything topout replaces in torch, so that it can be taken out and put back between blocks."""

    def __init__(self):
        import torch
        from torch.optim import optimizer as optim
        from torch.utils.data import dataloader

        self.places = [
            (dataloader.DataLoader, "__iter__"), (dataloader._BaseDataLoaderIter, "__next__"),
            (torch.autograd, "backward"), (torch.nn.Module, "train"), (torch.serialization, "save"), (torch, "save"),
            (torch.Tensor, "to"), (torch.Tensor, "cuda"),
        ]  # fmt: skip
        self.hooks = (optim._global_optimizer_pre_hooks, optim._global_optimizer_post_hooks)
        off = self._read()
        self.recorder = self._install()
        self.states = {"off": off, "on": self._read()}
        self.is_on = True
        self.mark = None

    def _install(self):
        from topout.record import torch_taps
        from topout.record.recorder import Recorder
        from topout.record.settings import Settings
        from topout.record.status import StatusLine

        recorder = Recorder(Settings(run=Path(tempfile.mkdtemp(prefix="topout-overhead-"))), StatusLine(None))
        torch_taps.install(recorder)
        return recorder

    def _read(self):
        return [getattr(*place) for place in self.places], [dict(hooks) for hooks in self.hooks]

    def switch(self, state):
        attributes, hooks = self.states[state]
        if self.is_on:
            self.mark = self.recorder.mark  # the device clock decides by itself which steps it follows
        self.is_on = state == "on"
        self.recorder.mark = self.mark if self.is_on else None
        for place, attribute in zip(self.places, attributes, strict=True):
            setattr(*place, attribute)
        for target, content in zip(self.hooks, hooks, strict=True):
            target.clear()
            target.update(content)


def profiled(block):
    import torch

    with torch.profiler.profile():
        return block()


def run_topout(size, device, rounds, seed):
    _, block = build_loop(size, device)
    taps = Taps()
    arms = {"off": "off", "off again": "off", "topout": "on", "torch.profiler": "off"}
    order = random.Random(seed)
    rows = []
    for number in range(rounds + 3):
        names = [name for name in arms if name != "torch.profiler" or number % 10 == 0]
        order.shuffle(names)
        row = {}
        for name in names:
            taps.switch(arms[name])
            row[name] = profiled(block) if name == "torch.profiler" else block()
        if number >= 3:
            rows.append(row)
    num_steps = taps.recorder.num_steps
    assert num_steps >= rounds * BLOCK_STEPS, f"the taps were not in place: {num_steps} steps"
    return rows


def run_traceml(size, device, rounds, seed):
    model, block = build_loop(size, device)
    import traceml_ai as traceml

    traceml.init(mode="auto")
    arms = {"off": None, "off again": None, "traceml": lambda: traceml.trace_step(model)}
    order = random.Random(seed)
    rows = []
    for number in range(rounds + 3):
        names = list(arms)
        order.shuffle(names)
        row = {name: block(arms[name]) if arms[name] else block() for name in names}
        if number >= 3:
            rows.append(row)
    return rows


# ---- from rounds to figures


def ratio_with_bounds(rows, name, seed=0):
    """Median over rounds of block / mean of the round's off blocks, with a 95 % bootstrap interval."""
    off = {"off": ["off again"], "off again": ["off"]}.get(name, ["off", "off again"])
    ratios = [row[name] / statistics.fmean(row[o] for o in off) for row in rows if name in row]
    draw = random.Random(seed)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(2000))
    return statistics.median(ratios), medians[50], medians[1949], len(ratios)


def audit_hook_ns():
    """What the audit hook adds to one audited event of the interpreter."""
    code = """
import sys, time, os
def once():
    start = time.perf_counter_ns()
    for _ in range(200_000): sys.audit("something.else")
    return (time.perf_counter_ns() - start) / 200_000
before = min(once() for _ in range(5))
from topout.record.files import FileCounts
FileCounts().install()
print(min(once() for _ in range(5)) - before)
"""
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def child(kind, size, device, rounds, seed):
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "rows.json"
        words = ["--child", kind, "--size", size, "--device", device, "--rounds", str(rounds), "--seed", str(seed)]
        words += ["--result", str(result)]
        command = [sys.executable, os.path.abspath(__file__), *words]
        if kind == "traceml":  # as its manual says: its launcher brings the aggregator that the rank reports to
            launcher = str(Path(sys.executable).with_name("traceml"))
            command = [launcher, "run", os.path.abspath(__file__), "--mode", "summary", "--args", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
        if not result.exists():
            print(f"{kind} at {size} did not run:\n{done.stdout[-800:]}{done.stderr[-800:]}", file=sys.stderr)
            return []
        return json.loads(result.read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--machine", default=f"{os.cpu_count()}-cores", help="how the results name this machine")
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--child", choices=["topout", "traceml"])
    parser.add_argument("--size", choices=list(SIZES))
    options = parser.parse_args()
    if options.child:
        run = {"topout": run_topout, "traceml": run_traceml}[options.child]
        options.result.write_text(json.dumps(run(options.size, options.device, options.rounds, options.seed)))
        return
    lines = []
    for size in SIZES:
        rows = {"topout": [], "traceml": []}
        slices = max(1, options.rounds // 50)
        for part in range(slices):  # processes take turns, so that a slow minute meets both
            for kind in rows:
                share = options.rounds if kind == "topout" else max(options.rounds // 4, 10)
                rows[kind] += child(kind, size, options.device, share // slices, options.seed + part)
        step_ms = statistics.median(row["off"] for row in rows["topout"]) * 1e3
        for kind, name in (
            ("topout", "off again"),
            ("topout", "topout"),
            ("traceml", "traceml"),
            ("topout", "torch.profiler"),
        ):
            if not rows[kind]:
                continue
            ratio, low, high, count = ratio_with_bounds(rows[kind], name)
            lines.append(f"| {step_ms:.2f} ms | {name} | {ratio:.4f} | {low:.4f} – {high:.4f} | {count} |")
            print(lines[-1], flush=True)
    text = REPORT.format(
        date=date.today(), machine=f"{options.machine}, {platform.machine()}, Python {platform.python_version()}",
        rounds=options.rounds, steps=BLOCK_STEPS, table="\n".join(lines), audit=audit_hook_ns(),
    )  # fmt: skip
    print(text)
    if options.out:
        (options.out / f"{date.today()}-overhead-{options.machine}.md").write_text(text)


REPORT = """# What recording costs a step
{date}; {machine}; {rounds} rounds of {steps}-step blocks in random order, one process;
made by `benchmarks/overhead.py`.

| step | with | step time / off (median over rounds) | 95 % interval | rounds |
|---|---|---|---|---|
{table}

`off again` is the same code twice: what noise alone gives. The audit hook that counts opened files stays in place in
`off` blocks; it adds {audit:.0f} ns to each audited event of the interpreter, of which a step has none unless it
opens files or imports.
"""

if __name__ == "__main__":
    main()
