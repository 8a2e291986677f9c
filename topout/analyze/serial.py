"""Phases in which the job does not train: evaluation, saves, and the time in which one rank does them for all.

The window reaches to the end of the run, so a last evaluation counts. Not for input: a rank that waits for data could
train.
"""

from collections.abc import Sequence

import numpy as np

from topout.analyze.evaluations import has_only_modes
from topout.analyze.segments import PHASE, Stretches
from topout.analyze.steps import Phases
from topout.schema.measures import Serial
from topout.trace.table import Int64s


def measure_serial(phases: Phases, shares: dict[str, float]) -> Serial:
    """`shares` are the mean shares of the window."""
    apart_ns = phases.phase_ns[:, :, [PHASE["evaluation"], PHASE["checkpoint"]]].sum(axis=(1, 2))
    ranks = () if not apart_ns.any() else tuple(
        table.rank for table, own in zip(phases.tables, apart_ns, strict=True) if own > apart_ns.max() / 2
    )  # fmt: skip
    return Serial(
        evaluation_share=shares["evaluation"],
        checkpoint_share=shares["checkpoint"],
        single_rank_share=_single_rank_ns(phases) / phases.elapsed_ns if len(phases.tables) > 1 else None,
        ranks=ranks,
        steps_per_rollout=_steps_per_rollout(phases),
    )


def _steps_per_rollout(phases: Phases) -> float | None:
    """Of evaluations that all ranks make together, and that nobody named and no loader fed."""
    num_apart = int((phases.phase_ns[:, :, PHASE["evaluation"]] > 0).all(axis=0).sum())
    return len(phases.steps) / num_apart if num_apart and all(map(has_only_modes, phases.tables)) else None


def _single_rank_ns(phases: Phases) -> int:
    """Time in which some ranks (at most half) evaluate or save, and most of the others stand waiting."""
    apart = [segments.stretches("evaluation", "checkpoint") for segments in phases.segments]
    if not any(len(own) for own in apart):
        return 0
    # where the split is withheld waiting counts as transfer
    idle = [segments.stretches("wait", "transfer") for segments in phases.segments]
    last_ns = int(phases.edges_ns[0, -1])
    ended = [_from_end(int(segments.edges_ns[-1]), last_ns) for segments in phases.segments]
    edges_ns, num_apart, num_idle = _depths(apart, [a + b for a, b in zip(idle, ended, strict=True)])
    num_ranks = len(phases.tables)
    is_serial = (num_apart >= 1) & (num_apart <= num_ranks // 2) & (2 * num_idle >= num_ranks - num_apart)
    inside = np.clip(edges_ns, phases.start_ns, last_ns)
    return int(np.diff(inside)[is_serial].sum())


def _from_end(end_ns: int, last_ns: int) -> Stretches:
    """A rank that has finished waits for the others."""
    times = np.array([end_ns, max(end_ns, last_ns)], dtype=np.int64)
    return Stretches(times[:1], times[1:])


def _depths(first: Sequence[Stretches], second: Sequence[Stretches]) -> tuple[Int64s, Int64s, Int64s]:
    """Edges, and between neighbouring edges how many stretches of each kind overlap."""
    points = [
        np.concatenate([getattr(own, side) for own in kind])
        for kind in (first, second)
        for side in ("start_ns", "end_ns")
    ]
    edges_ns, places = np.unique(np.concatenate(points), return_inverse=True)
    begins_1, ends_1, begins_2, ends_2 = np.split(places, np.cumsum([len(p) for p in points])[:-1])
    return edges_ns, _running(begins_1, ends_1, len(edges_ns)), _running(begins_2, ends_2, len(edges_ns))


def _running(begins: Int64s, ends: Int64s, num_edges: int) -> Int64s:
    change = np.bincount(begins, minlength=num_edges) - np.bincount(ends, minlength=num_edges)
    return np.cumsum(change)[:-1]
