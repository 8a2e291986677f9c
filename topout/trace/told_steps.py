"""Which steps of a recording count: those that an optimizer or the script itself ended, else those told by backward.

A loop without torch.optim has no others than the latter. Where a rank of the run has both, those told by backward came
before its first optimizer step and were parts of it: gradients that added up.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from topout.record.row_names import BY_BACKWARD
from topout.schema.event import Kind
from topout.trace.table import Bools, RankTable


def settle_steps(tables: Sequence[RankTable]) -> list[RankTable]:
    """The tables of one run, each with steps of one sort only, and all with the same."""
    is_told = [_is_told_by_backward(table) for table in tables]
    is_ended = any(((table.kind == Kind.STEP) & ~told).any() for table, told in zip(tables, is_told, strict=True))
    if not is_ended:
        return list(tables)
    return [_without(table, told) if told.any() else table for table, told in zip(tables, is_told, strict=True)]


def has_steps_by_backward(table: RankTable) -> bool:
    """Whether the steps that count are told by backward; for tables that are settled."""
    return bool(_is_told_by_backward(table).any())


def _is_told_by_backward(table: RankTable) -> Bools:
    named = [number for number, name in enumerate(table.names) if name == BY_BACKWARD]
    is_told: Bools = (table.kind == Kind.STEP) & np.isin(table.name_id, named)
    return is_told


def _without(table: RankTable, is_left_out: Bools) -> RankTable:
    """Steps are numbered anew from the first one that counts: what a device did before its end bears older numbers."""
    steps = np.flatnonzero((table.kind == Kind.STEP) & ~is_left_out)
    first_end_ns = table.end_ns[steps[0]] if len(steps) else np.iinfo(np.int64).max
    is_left_out = is_left_out | ((table.kind == Kind.DEVICE) & (table.start_ns < first_end_ns))
    kept = np.flatnonzero(~is_left_out)
    columns = ("kind", "flags", "name_id", "start_ns", "duration_ns", "value", "ref")
    return replace(table, **{column: getattr(table, column)[kept] for column in columns})
