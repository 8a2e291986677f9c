"""The groups in which gradients travelled, as a recording shows them: how large each is, and when it was complete.

A group's moment is a share of backward, from its begin to the arrival of the last group: after that a rank has nothing
left to compute. Not where the host runs ahead of a GPU: there arrivals are those of launches.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from topout.analyze.accelerator import runs_ahead
from topout.schema.event import Kind
from topout.trace.table import Int64s, RankTable


@dataclass(frozen=True)
class Groups:
    """In the order in which they become complete."""

    ready: tuple[float, ...]
    shares: tuple[float, ...]
    """Of the bytes of a step."""


def seen_groups(tables: Sequence[RankTable]) -> Groups | None:
    """Medians over steps and ranks of those backwards that had the usual number of groups; None where none was seen."""
    found = [each for table in tables if not runs_ahead(table) for each in _of_rank(table)]
    if not found:
        return None
    counts = [len(moments) for moments, _ in found]
    usual = max(set(counts), key=counts.count)
    moments = np.median([moments for moments, _ in found if len(moments) == usual], axis=0)
    sizes = np.median([sizes for moments, sizes in found if len(moments) == usual], axis=0)
    return Groups(
        tuple(round(float(moment), 4) for moment in moments), tuple(round(float(s), 6) for s in sizes / sizes.sum())
    )


def _of_rank(table: RankTable) -> list[tuple[Int64s, Int64s]]:
    """For each backward that sent something: shares of it and bytes."""
    arrivals = table.rows_of_any_thread(Kind.ARRIVAL)
    arrivals = arrivals[np.argsort(table.start_ns[arrivals], kind="stable")]
    moments_ns = table.start_ns[arrivals]
    backward = table.rows(Kind.BACKWARD)
    first = np.searchsorted(moments_ns, table.start_ns[backward])
    behind = np.searchsorted(moments_ns, table.end_ns[backward], side="right")
    found = []
    for row, begin, end in zip(backward, first, behind, strict=True):
        sizes = table.value[arrivals[begin:end]]
        took_ns = moments_ns[begin:end] - table.start_ns[row]
        if end > begin and took_ns[-1] > 0 and sizes.min() > 0:
            found.append((took_ns / took_ns[-1], sizes))
    return found
