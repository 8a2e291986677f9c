"""Pipelines: what each stage computed, when it stood waiting for its neighbours, and what the schedule explains of it.

    step of a rank = chunks computed + bubble + collectives + optimizer + input
    bubble         = waiting for activations and gradients: filling, draining, and uneven stages

Chunks have rows of their own, so inside a schedule nothing is derived from backward. What a schedule neither computes
in a stage nor waits for (the loss, cutting a batch into micro-batches) counts as forward. Not for pipelines written by
hand: without a schedule of `torch.distributed.pipelining` there is no bubble, only waiting.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topout.analyze.segments import PHASE, Stretches
from topout.schema.event import Kind
from topout.schema.measures import Pipeline, StageTime
from topout.schema.pipeline import bubble_share, enough_microbatches
from topout.trace.table import Int64s, RankTable

Floats = NDArray[np.float64]

WORTH_MORE_SHARE = 0.10
"""A formula's share below this calls for no more micro-batches."""


@dataclass(frozen=True)
class Chunks:
    """One rank's schedules, and what happened inside them."""

    schedule: Stretches
    bubble: Stretches
    forward: Stretches
    backward: Stretches


def find_chunks(table: RankTable) -> Chunks:
    """All empty for a rank without a pipeline."""
    schedules, waits = _stretches(table, Kind.SCHEDULE), _stretches(table, Kind.NEIGHBOUR)
    return Chunks(
        schedule=schedules,
        # a torch whose waiting could not be tapped: all that is not computed
        bubble=waits if len(waits) else schedules,
        forward=_stretches(table, Kind.CHUNK, "forward"),
        backward=_stretches(table, Kind.CHUNK, "backward", "weight", "reduce"),
    )


def _stretches(table: RankTable, kind: Kind, *names: str) -> Stretches:
    rows = table.rows(kind)
    if names:
        rows = rows[np.isin(table.name_id[rows], [i for i, name in enumerate(table.names) if name in names])]
    return Stretches(table.start_ns[rows], table.end_ns[rows])


def measure_pipeline(tables: Sequence[RankTable], phase_ns: Int64s, elapsed_ns: int) -> Pipeline | None:
    """`phase_ns` is [ranks, steps, PHASES] of the window; None when no rank ran a schedule."""
    runs = [(table, row) for table in tables for row in table.rows(Kind.SCHEDULE)[-1:]]
    if not runs:
        return None
    table, row = runs[0]
    schedule, num_microbatches, num_stages = table.name(row), int(table.value[row]), int(table.ref[row])
    by_phase_ns = phase_ns.sum(axis=1)
    bubble_ns = by_phase_ns[:, PHASE["bubble"]]
    compute_ns = by_phase_ns[:, PHASE["forward"]] + by_phase_ns[:, PHASE["backward"]]
    stages = _by_stage(tables, compute_ns / elapsed_ns, bubble_ns / elapsed_ns)
    stages_per_rank = max((len(own.stages) for own in stages), default=1)
    num_ranks = -(-num_stages // stages_per_rank)
    formula = bubble_share(schedule, num_ranks, num_microbatches, stages_per_rank)
    slowest = max(stages, key=lambda own: own.compute_share, default=None)
    mean = float(np.mean([own.compute_share for own in stages])) if stages else 0.0
    better = enough_microbatches(num_ranks, num_microbatches)
    has_too_few = formula is not None and formula > WORTH_MORE_SHARE
    return Pipeline(
        schedule=schedule,
        num_stages=num_stages,
        num_microbatches=num_microbatches,
        stages_per_rank=stages_per_rank,
        compute_share=float(compute_ns.mean() / elapsed_ns),
        bubble_share=float(bubble_ns.mean() / elapsed_ns),
        schedule_bubble_share=_of_schedule(by_phase_ns),
        formula_share=formula,
        imbalance=slowest.compute_share / mean if slowest is not None and mean > 0 else 1.0,
        slowest_stage=slowest.stages[0] if slowest is not None else None,
        slowest_rank=slowest.ranks[0] if slowest is not None else None,
        stages=stages,
        better_microbatches=better if has_too_few else None,
        better_share=bubble_share(schedule, num_ranks, better, stages_per_rank) if has_too_few else None,
    )


def _of_schedule(by_phase_ns: Int64s) -> float:
    """Bubble over all that belongs to the schedule, all ranks together."""
    own = by_phase_ns[:, [PHASE[name] for name in ("bubble", "forward", "backward", "tensor")]].sum(axis=0)
    return float(own[0] / own.sum()) if own.sum() else 0.0


def _by_stage(tables: Sequence[RankTable], compute: Floats, bubble: Floats) -> tuple[StageTime, ...]:
    """Ranks that hold the same stages are replicas of each other: they count as one, in order of their stages."""
    ranks_of: dict[tuple[int, ...], list[int]] = {}
    for place, table in enumerate(tables):
        held = tuple(int(stage) for stage in np.unique(table.ref[table.rows(Kind.CHUNK)]) if stage >= 0)
        if held:
            ranks_of.setdefault(held, []).append(place)
    return tuple(
        StageTime(
            stages=held,
            ranks=tuple(tables[place].rank for place in places),
            compute_share=float(compute[places].mean()),
            bubble_share=float(bubble[places].mean()),
        )
        for held, places in sorted(ranks_of.items())
    )
