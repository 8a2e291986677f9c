"""What the ranks did step by step, as arrays: for timelines, distributions and comparisons.

Not for verdicts: `measure` reduces the same arrays to numbers and says what they mean.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topout.analyze.input import first_fact
from topout.analyze.marks import NamedSpans, add_up_spans
from topout.analyze.steps import read_phases
from topout.schema.event import CUMULATIVE_COUNTERS
from topout.schema.run_folder import RunFolder
from topout.trace.table import Counter, RankTable
from topout.trace.told_steps import has_steps_by_backward

Samples = tuple[NDArray[np.float64], NDArray[np.float64]]
"""times in seconds after the window's start, values"""


@dataclass(frozen=True, kw_only=True)
class Series:
    """Ranks x steps of the common window. Every rank's durations add up to the same elapsed time."""

    ranks: list[int]
    hosts: list[str]
    steps: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    """[ranks, steps]"""
    phase_ns: NDArray[np.int64]
    """[ranks, steps, PHASES]"""
    start_ns: NDArray[np.int64]
    """[ranks, steps], clocks aligned, after the start of the window"""
    tail_ns: NDArray[np.int64]
    """[ranks]: the part of the last step's duration that lies after its optimizer step (a last evaluation, idling)."""
    counters: list[dict[str, Samples]]
    """One dictionary a rank; a counter that only grows is given as its rate, a second."""
    spans: list[NamedSpans]
    has_steps_by_backward: bool = False
    """No optimizer of torch.optim stepped: each backward is taken for the end of a step."""
    batch_size: int | None = None
    """Of one rank."""
    is_split_withheld: bool = False
    """Waiting is given as transfer, since clocks of hosts disagree by more than it."""


def load_series(folder: RunFolder) -> Series | None:
    """None when no rank completed an optimizer step."""
    phases = read_phases(folder)
    if phases is None:
        return None
    start_ns = phases.start_ns
    return Series(
        ranks=[table.rank for table in phases.tables],
        hosts=[table.host for table in phases.tables],
        steps=phases.steps,
        duration_ns=phases.duration_ns,
        phase_ns=phases.phase_ns,
        start_ns=phases.edges_ns[:, :-1] - start_ns,
        tail_ns=phases.tail_ns,
        counters=[_rates(table, start_ns) for table in phases.tables],
        spans=add_up_spans(phases.tables),
        has_steps_by_backward=any(has_steps_by_backward(table) for table in phases.tables),
        batch_size=first_fact(phases, "batch_size"),
        is_split_withheld=phases.is_split_withheld,
    )


def _rates(table: RankTable, start_ns: int) -> dict[str, Samples]:
    rates = {}
    for name, counter in table.counters.items():
        is_cumulative = name in CUMULATIVE_COUNTERS
        samples = _rate(counter, start_ns) if is_cumulative else _level(counter, start_ns)
        if len(samples[0]):
            rates[name] = samples
    return rates


def _level(counter: Counter, start_ns: int) -> Samples:
    return (counter.times_ns - start_ns) / 1e9, counter.values.astype(np.float64)


def _rate(counter: Counter, start_ns: int) -> Samples:
    times_s = (counter.times_ns - start_ns) / 1e9
    # samples of one instant would divide by zero
    is_later = np.diff(times_s, prepend=-np.inf) > 0
    times_s, values = times_s[is_later], counter.values[is_later]
    return times_s[1:], np.maximum(np.diff(values), 0) / np.diff(times_s)
