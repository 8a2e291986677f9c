"""Sampled counters over the window: how fast those that only grow did grow, and the highest level of the others.

A counter is sampled four times a second at first, then once, and after an hour every ten seconds. Over a window shorter
than that the whole recording is taken.
"""

from collections.abc import Sequence

import numpy as np

from topout.trace.table import Counter, RankTable

_SHORTEST_S = 0.75


def growth_per_s(counter: Counter | None, start_ns: int, end_ns: int) -> float | None:
    """None with fewer than two samples."""
    if counter is None or len(counter.times_ns) < 2:
        return None
    first, last = int(counter.times_ns[0]), int(counter.times_ns[-1])
    start_ns, end_ns = max(start_ns, first), min(end_ns, last)
    if (end_ns - start_ns) / 1e9 < _SHORTEST_S:
        start_ns, end_ns = first, last
    if end_ns <= start_ns:
        return None
    # a loader worker that ends may take its count with it; only growth counts
    total = np.concatenate([[0], np.cumsum(np.maximum(np.diff(counter.values), 0))])
    at_start, at_end = np.interp([start_ns, end_ns], counter.times_ns, total)
    return float(at_end - at_start) / (end_ns - start_ns) * 1e9


def covers(counter: Counter | None, start_ns: int, end_ns: int) -> bool:
    """Whether samples tell of the window itself: else what it grew by at the start of the run would stand in for it."""
    if counter is None or len(counter.times_ns) < 2:
        return False
    seen_ns = min(end_ns, int(counter.times_ns[-1])) - max(start_ns, int(counter.times_ns[0]))
    return seen_ns / 1e9 >= _SHORTEST_S


def total_per_s(tables: Sequence[RankTable], name: str, start_ns: int, end_ns: int) -> float | None:
    """Over all ranks; None when no rank has the counter."""
    rates = [growth_per_s(table.counters.get(name), start_ns, end_ns) for table in tables]
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None


def peak(tables: Sequence[RankTable], *names: str) -> int | None:
    """The highest sum of these levels at one moment on any one rank."""
    peaks = []
    for table in tables:
        counters = [table.counters[name] for name in names if name in table.counters]
        if counters and len(counters[0].values):
            together = counters[0].values.astype(np.float64)
            for other in counters[1:]:
                together = together + np.interp(counters[0].times_ns, other.times_ns, other.values)
            peaks.append(int(together.max()))
    return max(peaks, default=None)
