"""What was trained on in the window: samples of all ranks, and how many batches make a step.

A script that adds up gradients takes several batches a step. Not for evaluations: their batches feed no backward.
"""

from typing import NamedTuple

import numpy as np

from topout.analyze.evaluations import feeds_training
from topout.analyze.peers import sample_peers
from topout.analyze.steps import Phases
from topout.schema.event import Kind
from topout.trace.table import Int64s, RankTable

_ANY = 1 << 30


class Trained(NamedTuple):
    samples_per_s: float | None
    """Of all ranks; None where no loader said how many samples its batches hold."""
    batches_per_step: int | None
    """Of one rank; None where no loader was seen."""
    samples_per_step: float | None
    """Of one rank."""


def trained_on(phases: Phases) -> Trained:
    batches = {table.rank: _batches(table, *own) for table, own in zip(phases.tables, phases.own_ns, strict=True)}
    # peers work on the same samples, and in a pipeline not every stage asks for them
    groups = sample_peers(phases.tables)
    num_samples = sum(max(int(np.maximum(batches[rank], 0).sum()) for rank in peers) for peers in groups)
    num_batches = sum(max(len(batches[rank]) for rank in peers) for peers in groups)
    num_steps = len(groups) * len(phases.steps)
    return Trained(
        samples_per_s=num_samples / (phases.elapsed_ns / 1e9) if num_samples else None,
        batches_per_step=min(max(1, round(num_batches / num_steps)), _most(phases)) if num_batches else None,
        samples_per_step=num_samples / num_steps if num_samples else None,
    )


def _most(phases: Phases) -> int:
    """Batches that a step can have added up, by its backwards: of two loaders, a step takes one batch each at once."""
    starts_ns = [table.start_ns[table.rows(Kind.BACKWARD)] for table in phases.tables]
    counts = [
        int(((own >= first_ns) & (own < end_ns)).sum())
        for own, (first_ns, end_ns) in zip(starts_ns, phases.own_ns, strict=True)
    ]
    # a step that is compiled whole shows none
    return max(1, round(max(counts) / len(phases.steps))) if max(counts) else _ANY


def _batches(table: RankTable, first_ns: int, end_ns: int) -> Int64s:
    """Samples of each batch between these times that was trained on; below 0 where it did not say."""
    rows = table.rows(Kind.INPUT)
    rows = rows[feeds_training(table, rows, table.start_ns[table.rows(Kind.BACKWARD)])]
    # a row without samples is the start of an iterator
    is_batch = (table.end_ns[rows] >= first_ns) & (table.end_ns[rows] < end_ns) & (table.value[rows] != 0)
    num_samples: Int64s = table.value[rows[is_batch]]
    return num_samples
