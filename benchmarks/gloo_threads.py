"""What an all-reduce of Gloo takes when its receiving thread gives way to its senders, and when it does not.

    python benchmarks/gloo_threads.py --out benchmarks/results       # loopback and 1 Gbit/s, a minute; needs root
    python benchmarks/gloo_threads.py --links loopback

Two ranks, one core each. Both groups live in one process and take turns in random order, so that only ratios within a
round count. `alone`: nothing else runs on the core. `stolen`: by how much a computation of some 30 ms takes longer
while that message travels. See `topout/record/gloo_threads.py` for the reason.
"""

import argparse
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

SIZES_BYTES = (4 << 10, 64 << 10, 1 << 20, 32 << 20)
REPEATS = {4 << 10: 100, 64 << 10: 100, 1 << 20: 20, 32 << 20: 2}
LARGEST_BESIDE_BYTES = 1 << 20
"""A larger one takes longer than the computation beside it."""
GROUPS = ("as torch makes it", "gives way")


def rank_main(rounds, out):
    """One of the two ranks."""
    import torch
    import torch.distributed as dist

    from topout.record import gloo_threads

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    groups = {GROUPS[0]: dist.new_group()}
    gloo_threads.install(dist.distributed_c10d)
    groups[GROUPS[1]] = dist.new_group()
    classes = [os.sched_getscheduler(int(task)) for task in os.listdir("/proc/self/task")]
    assert classes.count(os.SCHED_BATCH) == 1, "the second group's receiving thread, and no other"
    matrix = torch.randn(128, 128)

    def compute():
        for _ in range(200):
            torch.mm(matrix, matrix)

    def alone_s(message, group):
        dist.barrier(group=group)
        start_s = time.perf_counter()
        for _ in range(REPEATS[message.nbytes]):
            dist.all_reduce(message, group=group)
        return (time.perf_counter() - start_s) / REPEATS[message.nbytes]

    def beside_s(message, group):
        dist.barrier(group=group)
        start_s = time.perf_counter()
        work = None if message is None else dist.all_reduce(message, group=group, async_op=True)
        compute()
        took_s = time.perf_counter() - start_s
        if work is not None:
            work.wait()
        return took_s

    messages = [torch.zeros(size // 4) for size in SIZES_BYTES]
    jobs = [("alone", message, name) for message in messages for name in groups]
    short = [message for message in messages if message.nbytes <= LARGEST_BESIDE_BYTES]
    jobs += [("beside", message, name) for message in short for name in groups] + [("beside", None, GROUPS[0])]
    times = {_key(*job): [] for job in jobs}
    shuffled = random.Random(0)
    for number in range(rounds + 1):
        shuffled.shuffle(jobs)
        for what, message, name in jobs:
            taken_s = (alone_s if what == "alone" else beside_s)(message, groups[name])
            if number:
                times[_key(what, message, name)].append(taken_s)
    if dist.get_rank() == 0:
        Path(out).write_text(json.dumps(times))
    dist.destroy_process_group()


def _key(what, message, name):
    return f"{what} {0 if message is None else message.nbytes} {name}"


def table(times, link):
    from step import ratio

    lines = [
        f"## {link}",
        "",
        "| message | alone, as torch makes it | alone, gives way | of it | stolen, as torch makes it | gives way |",
        "|---|---|---|---|---|---|",
    ]
    nothing_s = statistics.median(times[f"beside 0 {GROUPS[0]}"])
    for size in SIZES_BYTES:
        plain, ours = (times[f"alone {size} {name}"] for name in GROUPS)
        middle, low, high = ratio(ours, plain)
        cells = [f"{1e3 * statistics.median(plain):.2f} ms", f"{1e3 * statistics.median(ours):.2f} ms"]
        cells.append(f"{middle:.2f} ({low:.2f} to {high:.2f})")
        for name in GROUPS:
            beside = times.get(f"beside {size} {name}")
            cells.append(f"{1e3 * (statistics.median(beside) - nothing_s):.1f} ms" if beside else "")
        lines.append(f"| {size >> 10:,} KiB | {' | '.join(cells)} |")
    return "\n".join(lines)


def main():
    from step import LINKS, between_nodes, on_loopback

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--links", nargs="+", default=list(LINKS), choices=LINKS)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--machine", default=f"{os.cpu_count()}-cores")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rank", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        rank_main(int(args.rank[0]), args.rank[1])
        return
    parts = [
        "# All-reduce of Gloo with a receiving thread that gives way",
        f"{date.today()}; {args.machine}, {platform.machine()}, Linux {platform.release().split('-')[0]};",
        "two ranks, one core each;",
        f"{args.rounds} rounds; made by `benchmarks/gloo_threads.py`. Medians; ratios with 95 % intervals.",
        "",
    ]
    for link in args.links:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "times.json"
            words = [sys.executable, __file__, "--rank", str(args.rounds), str(out)]
            (on_loopback if link == "loopback" else between_nodes)(words, folder)
            parts += [table(json.loads(out.read_text()), LINKS[link]), ""]
            print(parts[-2], flush=True)
    if args.out:
        (args.out / f"{date.today()}-gloo-threads-{args.machine}.md").write_text("\n".join(parts))


if __name__ == "__main__":
    main()
