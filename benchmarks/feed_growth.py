"""How the cost of a verified gather grows with the number of samples, beside the memory map of the same size.

    python benchmarks/feed.py prepare                        # once: the records and their packs
    python benchmarks/feed_growth.py --out benchmarks/results

Both read shuffled batches in one process, a few milliseconds by turns, so that a machine whose speed drifts slows both;
a pair of turns gives one ratio. Not for rates, which `feed.py` takes in processes of their own.
"""

import argparse
import os
import platform
import random
import statistics
import tempfile
import time
from datetime import date
from pathlib import Path

import numpy as np
import torch

from topout.packs.pack import open_pack

SIZES = (10_000, 100_000, 1_000_000)
RECORD_BYTES, BATCH, TURN = 784, 256, 39


def readers_of(data, num_samples, draw):
    """The memory map and the gather, each after an epoch that is not timed."""
    folder = data / f"records-{num_samples}x{RECORD_BYTES}"
    x, y = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in "xy")
    pack = open_pack(data / "stores" / folder.name / "topout")

    def from_map(numbers):
        return torch.from_numpy(x[numbers]), torch.from_numpy(y[numbers])

    def gathered(numbers):
        columns = pack.gather(numbers)
        return torch.from_numpy(columns["x"]), torch.from_numpy(columns["y"])

    assert all(map(torch.equal, from_map(np.arange(BATCH)), gathered(np.arange(BATCH))))
    for read in (from_map, gathered):
        for numbers in np.array_split(draw.permutation(num_samples), num_samples // BATCH):
            read(numbers)
    return from_map, gathered


def take_turns(readers, num_samples, seconds, draw):
    """Pairs of seconds a batch: (memory map, gather)."""
    pairs, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        taken_s = {}
        for number in draw.permutation(2).tolist():
            batches = draw.permutation(num_samples)[: TURN * BATCH].reshape(-1, BATCH)
            start = time.perf_counter()
            for numbers in batches:
                readers[number](numbers)
            taken_s[number] = (time.perf_counter() - start) / len(batches)
        pairs.append((taken_s[0], taken_s[1]))
    return pairs


def with_bounds(values, seed=0):
    """The median with a 95 % bootstrap interval."""
    draw = random.Random(seed)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(1000))
    return f"{statistics.median(values):.3f} ({medians[25]:.3f} – {medians[974]:.3f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "feed-bench-data")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=3.0, help="of a size in a round")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--machine", default=f"{os.cpu_count()}-cores")
    options = parser.parse_args()
    draw = np.random.default_rng(options.seed)
    readers = {size: readers_of(options.data, size, draw) for size in SIZES}
    pairs = {size: [] for size in SIZES}
    for _ in range(options.rounds):
        for size in draw.permutation(SIZES).tolist():
            pairs[size] += take_turns(readers[size], size, options.seconds, draw)
    rows = []
    for size in SIZES:
        map_s, gather_s = (statistics.median(side) for side in zip(*pairs[size], strict=True))
        ratio = with_bounds([one / other for one, other in pairs[size]])
        rows.append(f"| {size:,} | {BATCH / map_s:,.0f} | {BATCH / gather_s:,.0f} | {ratio} | {len(pairs[size])} |")
    text = REPORT.format(
        date=date.today(), machine=f"{options.machine}, Python {platform.python_version()}", rounds=options.rounds,
        rows="\n".join(rows),
    )  # fmt: skip
    print(text)
    if options.out:
        (options.out / f"{date.today()}-feed-growth-{options.machine}.md").write_text(text)


REPORT = f"""# A verified gather beside the memory map, as the number of samples grows
{{date}}; {{machine}}; records of {RECORD_BYTES} B with a label, shuffled, batches of {BATCH}; {{rounds}} rounds;
made by `benchmarks/feed_growth.py`.

| samples | memory map, samples/s | `Pack.gather`, samples/s | ratio (95 %) | pairs |
|---|---|---|---|---|
{{rows}}

Medians; both read by turns of {TURN} batches in one process, and a pair of turns gives one ratio; sizes in random order
within a round. The gather verifies every sample's checksum.
"""

if __name__ == "__main__":
    main()
