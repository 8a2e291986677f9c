"""Ranks that the others wait for: who, where, in which phase, and whether always or now and then.

A rank is late by what it was busy with, up to its own last arrival; the end of its backward says nothing, because an
all-reduce makes all of them end together.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from topout.analyze.segments import PHASE
from topout.analyze.steps import Phases
from topout.schema.measures import COMMUNICATION_PHASES, PHASES, Straggler

MIN_EXCESS_SHARE = 0.05
"""A rank whose busy step is longer than the others' by less than this share of a step is not named."""
MIN_LATE_SHARE = 0.02
"""In a single step, a rank is late when it exceeds the others' median by this share of a step."""
BUSY_PHASES = tuple(name for name in PHASES if name not in COMMUNICATION_PHASES)
_BUSY = [PHASE[name] for name in BUSY_PHASES]

Floats = NDArray[np.float64]


def find_stragglers(phases: Phases) -> tuple[Straggler, ...]:
    """Worst first; none with one rank."""
    num_ranks = len(phases.tables)
    if num_ranks < 2:
        return ()
    step_ns = phases.elapsed_ns / len(phases.steps)
    by_phase_ns = phases.phase_ns[:, :, _BUSY].mean(axis=1)
    excesses_ns = [float(excess_ns) for excess_ns in _over_others(by_phase_ns.sum(axis=1), range(num_ranks))]
    late = [r for r, excess_ns in enumerate(excesses_ns) if excess_ns >= MIN_EXCESS_SHARE * step_ns]
    if not late:
        return ()
    by_step = _over_others(phases.busy_ns.astype(np.float64), late)
    found = [
        Straggler(
            rank=phases.tables[r].rank,
            host=phases.tables[r].host,
            phase=BUSY_PHASES[int(np.argmax(more_ns))],
            excess_share=excesses_ns[r] / step_ns,
            is_persistent=bool(np.mean(late_ns > MIN_LATE_SHARE * step_ns) > 0.5),
        )
        for r, more_ns, late_ns in zip(late, _over_others(by_phase_ns, late), by_step, strict=True)
    ]
    return tuple(sorted(found, key=lambda straggler: -straggler.excess_share))


def _over_others(values: Floats, ranks: Iterable[int]) -> Iterator[Floats]:
    """For each of these ranks, how much its values exceed the median of the other ranks'.

    All ranks are put in order once: of the others, the k-th is the k-th of all where that lies below the rank's own
    value, and the one after it elsewhere.
    """
    num_others = len(values) - 1
    middle = ((num_others - 1) // 2, num_others // 2)
    ordered = np.partition(values, sorted({*middle, middle[1] + 1}), axis=0)
    low, high, after = ordered[middle[0]], ordered[middle[1]], ordered[middle[1] + 1]
    next_to_low = high if middle[0] < middle[1] else after
    for rank in ranks:
        own = values[rank]
        yield own - (np.where(low < own, low, next_to_low) + np.where(high < own, high, after)) / 2


@dataclass(frozen=True)
class WaitCauses:
    """Why ranks waited: shares of the window, mean over ranks, by what the last rank to arrive was still doing."""

    by_phase: dict[str, float]
    unexplained: float
    bubble_by_phase: dict[str, float] = field(default_factory=dict)
    """Likewise of a pipeline's bubble, as far as another rank's being late explains it; the schedule has the rest."""


def wait_causes(phases: Phases) -> WaitCauses:
    """Each rank's waiting in a step, given to the phases in which the step's busiest rank spent more than it."""
    by_phase, unexplained = _explain(phases, "wait")
    return WaitCauses(by_phase, unexplained, _explain(phases, "bubble", is_bounded=True)[0])


def _explain(phases: Phases, waiting: str, *, is_bounded: bool = False) -> tuple[dict[str, float], float]:
    """Shares by phase, and what is left; bounded, a phase explains no more waiting than it was longer by."""
    wait_ns = phases.phase_ns[:, :, PHASE[waiting]].astype(np.float64)
    busy_ns = phases.phase_ns[:, :, _BUSY].astype(np.float64)
    slowest = np.argmax(phases.busy_ns, axis=0)
    more_ns = np.maximum(busy_ns[slowest, np.arange(busy_ns.shape[1])][None] - busy_ns, 0)
    total_ns = more_ns.sum(axis=2)
    scale = np.divide(wait_ns, total_ns, out=np.zeros_like(wait_ns), where=total_ns > 0)
    if is_bounded:
        scale = np.minimum(scale, 1.0)
    whole_ns = phases.elapsed_ns * len(phases.tables)
    shares = (more_ns * scale[:, :, None]).sum(axis=(0, 1)) / whole_ns
    by_phase = {name: float(share) for name, share in zip(BUSY_PHASES, shares, strict=True)}
    return by_phase, max(0.0, float(wait_ns.sum() / whole_ns - shares.sum()))
