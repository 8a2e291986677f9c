"""The common window: the steps that all ranks completed, without the first ones that are not like the rest.

Compilation, autotuning, first touch and the loader's start make the first steps long. They are found by their length
against the later steps; evaluations and checkpoints must be taken off before, or they would pass for a warm-up.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from topout.schema.event import Kind
from topout.trace.table import Int64s, RankTable

WARMUP_FACTOR = 1.5
"""A leading step this much longer than the median of the later half is warm-up."""
MAX_WARMUP_SHARE = 0.5


def common_steps(tables: Sequence[RankTable]) -> tuple[Int64s, Int64s]:
    """Numbers of the steps that every rank completed, and their edges [ranks, steps + 1]; empty when there are none."""
    rows = [table.rows(Kind.STEP) for table in tables]
    numbers = [table.ref[own] for table, own in zip(tables, rows, strict=True)]
    common = numbers[0] if numbers else np.empty(0, dtype=np.int64)
    for own in numbers[1:]:
        common = np.intersect1d(common, own)
    common = _longest_run(np.unique(common))
    edges = np.zeros((len(rows), len(common) + 1), dtype=np.int64)
    if len(common):
        for r, (table, own) in enumerate(zip(tables, rows, strict=True)):
            chosen = own[np.isin(table.ref[own], common)]
            edges[r, :-1] = table.start_ns[chosen]
            edges[r, -1] = table.end_ns[chosen[-1]]
    return common, edges


def _longest_run(numbers: Int64s) -> Int64s:
    """Where steps are missing in the middle, the longest stretch without a gap."""
    if len(numbers) == 0:
        return numbers
    pieces = np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1)
    return max(pieces, key=len)


def num_warmup_steps(training_ns: NDArray[np.int64]) -> int:
    """How many leading steps to leave out; `training_ns` is each step's time without evaluation and checkpoint.

    The first step always goes when there is another one: it begins somewhere in the script's preparation.
    """
    num_steps = len(training_ns)
    if num_steps < 2:
        return 0
    usual_ns = float(np.median(training_ns[num_steps // 2 :]))
    at_most = max(1, int(num_steps * MAX_WARMUP_SHARE))
    is_usual = np.flatnonzero(training_ns[:at_most] <= WARMUP_FACTOR * usual_ns)
    return max(1, int(is_usual[0]) if len(is_usual) else at_most)
