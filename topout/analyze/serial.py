"""Phases in which the job does not train: evaluation, saves, and the time in which one rank does them for all.

The window reaches to the end of the run, so a last evaluation counts. Not for input: a rank that waits for data could
train.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from topout.analyze.evaluations import has_only_modes
from topout.analyze.segments import PHASE, Stretches
from topout.analyze.steps import Phases
from topout.schema.measures import Serial
from topout.trace.table import Int64s


class _Alone(NamedTuple):
    """Time in which some ranks (at most half) evaluate or save, and most of the others stand waiting."""

    total_ns: int
    evaluation_ns: int
    """The part of it in which one evaluates."""
    num_waiting: float | None
    """Ranks that wait in that part, on average."""


def measure_serial(phases: Phases, shares: dict[str, float]) -> Serial:
    """`shares` are the mean shares of the window."""
    apart_ns = phases.phase_ns[:, :, [PHASE["evaluation"], PHASE["checkpoint"]]].sum(axis=(1, 2))
    ranks = () if not apart_ns.any() else tuple(
        table.rank for table, own in zip(phases.tables, apart_ns, strict=True) if own > apart_ns.max() / 2
    )  # fmt: skip
    alone = _alone(phases) if len(phases.tables) > 1 else None
    return Serial(
        evaluation_share=shares["evaluation"],
        checkpoint_share=shares["checkpoint"],
        single_rank_share=alone.total_ns / phases.elapsed_ns if alone else None,
        single_rank_evaluation_share=alone.evaluation_ns / phases.elapsed_ns if alone else None,
        num_waiting=alone.num_waiting if alone else None,
        ranks=ranks,
        steps_per_rollout=_steps_per_rollout(phases),
    )


def _steps_per_rollout(phases: Phases) -> float | None:
    """Of evaluations that all ranks make together, and that nobody named and no loader fed."""
    num_apart = int((phases.phase_ns[:, :, PHASE["evaluation"]] > 0).all(axis=0).sum())
    return len(phases.steps) / num_apart if num_apart and all(map(has_only_modes, phases.tables)) else None


def _alone(phases: Phases) -> _Alone:
    evaluating = [segments.stretches("evaluation") for segments in phases.segments]
    saving = [segments.stretches("checkpoint") for segments in phases.segments]
    if not any(len(own) for own in (*evaluating, *saving)):
        return _Alone(0, 0, None)
    # where the split is withheld waiting counts as transfer
    idle = [segments.stretches("wait", "transfer") for segments in phases.segments]
    last_ns = int(phases.edges_ns[0, -1])
    ended = [_from_end(int(segments.edges_ns[-1]), last_ns) for segments in phases.segments]
    edges_ns, num_evaluating, num_saving, num_idle = _depths(
        evaluating, saving, [a + b for a, b in zip(idle, ended, strict=True)]
    )
    num_ranks, num_apart = len(phases.tables), num_evaluating + num_saving
    is_serial = (num_apart >= 1) & (num_apart <= num_ranks // 2) & (2 * num_idle >= num_ranks - num_apart)
    length_ns = np.diff(np.clip(edges_ns, phases.start_ns, last_ns))
    evaluation_ns = np.where(is_serial & (num_evaluating >= 1), length_ns, 0)
    evaluated_ns = int(evaluation_ns.sum())
    return _Alone(
        total_ns=int(length_ns[is_serial].sum()),
        evaluation_ns=evaluated_ns,
        num_waiting=float(evaluation_ns @ num_idle) / evaluated_ns if evaluated_ns else None,
    )


def _from_end(end_ns: int, last_ns: int) -> Stretches:
    """A rank that has finished waits for the others."""
    times = np.array([end_ns, max(end_ns, last_ns)], dtype=np.int64)
    return Stretches(times[:1], times[1:])


def _depths(*kinds: Sequence[Stretches]) -> tuple[Int64s, ...]:
    """Edges, and between neighbouring edges how many stretches of each kind overlap."""
    points = [np.concatenate([getattr(own, side) for own in kind]) for kind in kinds for side in ("start_ns", "end_ns")]
    edges_ns, places = np.unique(np.concatenate(points), return_inverse=True)
    parts = np.split(places, np.cumsum([len(p) for p in points])[:-1])
    depths = [_running(begins, ends, len(edges_ns)) for begins, ends in zip(parts[::2], parts[1::2], strict=True)]
    return edges_ns, *depths


def _running(begins: Int64s, ends: Int64s, num_edges: int) -> Int64s:
    change = np.bincount(begins, minlength=num_edges) - np.bincount(ends, minlength=num_edges)
    return np.cumsum(change)[:-1]
