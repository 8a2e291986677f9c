"""What averaging gradients costs a step: topout beside DDP, a grid of its bucket sizes, and what tutorials do.

    python benchmarks/step.py --out benchmarks/results           # loopback and a link of 1 Gbit/s, some 15 minutes
    python benchmarks/step.py --links loopback --rounds 3        # a quick look
    python benchmarks/step.py --kinds deep --only topout         # beside DDP and computing alone, and nothing else

Two ranks over Gloo, one computing thread each and one core unless said otherwise, every way in one process by turns in
random order, so that only ratios within a round count. The link of 1 Gbit/s joins two nodes of the laboratory
(tests/lab; needs root). Bound: the longer of computing alone, and forward plus all bytes at the bandwidth that a large
all-reduce reaches in the same rounds. It leaves out what carrying the bytes takes from cores that compute; the row
"the same bytes beside it" gives an idea of that: one message, on which nothing depends. Not a limit: its update is
torch's, and other messages may be cheaper to carry. Twenty models in one process push each other out of the caches, the
more so the smaller they are: with `--only` there are four or five, nearly as in training.
"""

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from step_rank import BESIDE, GRID_MB

from tests.lab.nodes import Nodes

HERE = Path(__file__).resolve().parent

KINDS = {
    "resnet18": "ResNet-18 (11.2 M parameters, 62 tensors)",
    "resnet18-own": "ResNet-18, backward without oneDNN (11.2 M parameters, 62 tensors)",
    "deep": "deep MLP (0.42 M parameters, 202 tensors)",
    "wide": "wide MLP (10.6 M parameters, 22 tensors)",
}
LINKS = {"loopback": "loopback", "1gbit": "1 Gbit/s between two laboratory nodes"}
NUM_DRAWS = 2000


def variables(rank, address, port, cache):
    return {
        "RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": address, "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(cache), "PYTHONPATH": str(HERE.parent),
    }  # fmt: skip


def on_loopback(words, folder, cores_per_rank=1):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    started = [
        subprocess.Popen(
            ["taskset", "-c", cores_of(rank, cores_per_rank), *words],
            env=os.environ | variables(rank, "127.0.0.1", port, folder),
        )
        for rank in range(2)
    ]
    assert [process.wait() for process in started] == [0, 0]


def cores_of(rank, number):
    return ",".join(str(rank * number + core) for core in range(number))


def between_nodes(words, folder, cores_per_rank=1):
    with Nodes(2, rate="1gbit", cores_per_node=cores_per_rank) as nodes:
        started = [
            nodes[rank].popen(
                words,
                env=variables(rank, nodes[0].address, 29500, folder) | {"GLOO_SOCKET_IFNAME": "eth0"},
                stdout=None,
                stderr=None,
            )
            for rank in range(2)
        ]
        assert [process.wait() for process in started] == [0, 0]


def measured(kind, link, rounds, steps, cores_per_rank, only):
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "found.json"
        words = [sys.executable, str(HERE / "step_rank.py"), kind, str(rounds), str(steps), str(out), *only]
        (on_loopback if link == "loopback" else between_nodes)(words, name, cores_per_rank)
        return json.loads(out.read_text())


def ratio(ours, theirs):
    """Median of the rounds' ratios, and the interval that holds 95 % of the medians of resampled rounds."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    chance = random.Random(0)
    draws = sorted(statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(NUM_DRAWS))
    return statistics.median(ratios), draws[round(0.025 * NUM_DRAWS)], draws[round(0.975 * NUM_DRAWS) - 1]


def bounds_s(found):
    """The shortest step of each round in which a forward waits for all gradients of the step before."""
    times = found["times_s"]
    return [
        max(compute, forward + found["num_bytes"] / bandwidth)
        for compute, forward, bandwidth in zip(
            times["no communication"], times["forward"], found["bytes_per_s"], strict=True
        )
    ]


def section(found, link):
    times = found["times_s"]
    limits = bounds_s(found)
    grid = ["DDP", *[name for name in (f"DDP, {limit:g} MB" for limit in GRID_MB) if name in times]]
    best = min(grid, key=lambda name: statistics.median(times[name]))
    lines = [
        f"## {KINDS[found['kind']]}, {LINKS[link]}",
        "",
        f"All-reduce of 32 MiB: {statistics.median(found['bytes_per_s']) / 1e6:,.0f} MB/s; "
        f"forward {1e3 * statistics.median(times['forward']):.1f} ms; "
        f"bound {1e3 * statistics.median(limits):.1f} ms{f'; best of the grid: {best}' if len(grid) > 1 else ''}.",
        "",
        "| way | step (median) | of DDP's step | bound / step |",
        "|---|---|---|---|",
    ]
    for name in [n for n in times if n not in ("forward", "all-reduce")]:
        middle, low, high = ratio(times[name], times["DDP"])
        near = ratio(limits, times[name])[0] if name != "no communication" else None
        lines.append(
            f"| {name} | {1e3 * statistics.median(times[name]):.1f} ms | {middle:.3f} ({low:.3f} to {high:.3f}) "
            f"| {'' if near is None else f'{near:.2f}'} |"
        )
    for name, how in found["settling"].items():
        groups = f", {how['groups']} groups" if how["groups"] else ""
        lines += ["", f"`{name}` settled after {how['steps']} steps on {how['chosen']}{groups}"]
        if len(grid) > 1:
            middle, low, high = ratio(times[name], times[best])
            lines[-1] += f"; {middle:.3f} ({low:.3f} to {high:.3f}) of the best of the grid"
        middle, low, high = ratio(times[name], times[BESIDE])
        lines[-1] += f"; {middle:.3f} ({low:.3f} to {high:.3f}) of computing with the same bytes beside it."
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", default=[k for k in KINDS if k != "resnet18-own"], choices=KINDS)
    parser.add_argument("--links", nargs="+", default=list(LINKS), choices=LINKS)
    parser.add_argument("--only", nargs="+", default=[], metavar="WAY", help="beside DDP and computing alone")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--cores-per-rank", type=int, default=1)
    parser.add_argument("--machine", default=f"{os.cpu_count()}-cores")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    parts = [
        "# What averaging gradients costs a step",
        f"{date.today()}; {args.machine}; two ranks over Gloo, one computing thread, {args.cores_per_rank} cores each;",
        f"{args.rounds} rounds of {args.steps} steps;",
        "made by `benchmarks/step.py`. Ratios are medians over rounds with 95 % intervals.",
        "",
    ]
    for link in args.links:
        for kind in args.kinds:
            found = measured(kind, link, args.rounds, args.steps, args.cores_per_rank, args.only)
            parts += [section(found, link), ""]
            print(parts[-2], flush=True)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / f"{date.today()}-step-{args.machine}.md").write_text("\n".join(parts))


if __name__ == "__main__":
    main()
