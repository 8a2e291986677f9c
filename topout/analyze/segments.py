"""A rank's time as one unbroken row of segments, each of one phase: nothing counted twice, nothing left out.

Recorded rows nest and overlap (a copy inside input, a collective inside an evaluation). They are painted in order of
precedence, and what no row covers is `other`. Pure arithmetic on integers: sums are exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topout.schema.measures import PHASES
from topout.trace.table import Int64s

PHASE = {name: number for number, name in enumerate(PHASES)}


@dataclass(frozen=True)
class Stretches:
    """Intervals of time, in any order; they may overlap."""

    start_ns: Int64s
    end_ns: Int64s

    @classmethod
    def none(cls) -> "Stretches":
        return cls(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))

    def __add__(self, more: "Stretches") -> "Stretches":
        return Stretches(np.concatenate([self.start_ns, more.start_ns]), np.concatenate([self.end_ns, more.end_ns]))

    def where(self, is_chosen: NDArray[np.bool_]) -> "Stretches":
        return Stretches(self.start_ns[is_chosen], self.end_ns[is_chosen])

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True)
class Segments:
    """`phase[i]` reigns from `edges_ns[i]` to `edges_ns[i + 1]`."""

    edges_ns: Int64s
    phase: NDArray[np.uint8]

    def stretches(self, *phases: str) -> Stretches:
        chosen = np.flatnonzero(np.isin(self.phase, [PHASE[name] for name in phases]))
        return Stretches(self.edges_ns[chosen], self.edges_ns[chosen + 1])


def paint(start_ns: int, end_ns: int, layers: Sequence[tuple[str, Stretches]]) -> Segments:
    """Segments from `start_ns` to `end_ns`; where layers overlap, the later one in the list wins."""
    points = [np.array([start_ns, end_ns], dtype=np.int64)]
    for _, stretches in layers:
        points += [np.clip(stretches.start_ns, start_ns, end_ns), np.clip(stretches.end_ns, start_ns, end_ns)]
    edges_ns, places = np.unique(np.concatenate(points), return_inverse=True)
    num_segments = len(edges_ns) - 1
    phase = np.full(num_segments, PHASE["other"], dtype=np.uint8)
    at = 2
    for name, stretches in layers:
        begins, at = places[at : at + len(stretches)], at + len(stretches)
        ends, at = places[at : at + len(stretches)], at + len(stretches)
        if len(stretches):
            depth = np.bincount(begins, minlength=num_segments + 1) - np.bincount(ends, minlength=num_segments + 1)
            phase[np.cumsum(depth)[:num_segments] > 0] = PHASE[name]
    return Segments(edges_ns, phase)


def cut(segments: Segments, edges_ns: Int64s) -> Int64s:
    """[steps, PHASES]: time in each phase between neighbouring edges. After its last segment a rank waits."""
    first, last = edges_ns[0], edges_ns[-1]
    inside = segments.edges_ns[(segments.edges_ns > first) & (segments.edges_ns < last)]
    bounds = np.sort(np.concatenate([inside, edges_ns]), kind="stable")  # equal ones enclose nothing
    begins = bounds[:-1]
    where = np.searchsorted(segments.edges_ns, begins, side="right") - 1
    phase = np.full(len(begins), PHASE["wait"], dtype=np.int64)
    is_known = where < len(segments.phase)
    phase[is_known] = segments.phase[np.maximum(where[is_known], 0)]
    step = np.searchsorted(edges_ns, begins, side="right") - 1
    num_steps = len(edges_ns) - 1
    # float weights hold integers exactly up to 2**53 ns, a hundred days
    sums = np.bincount(step * len(PHASES) + phase, weights=np.diff(bounds), minlength=num_steps * len(PHASES))
    return sums.astype(np.int64).reshape(num_steps, len(PHASES))
