"""The groups in which gradients travelled, as a recording shows them: how large each is, and when it was complete.

A group's moment is a share of a step's backward, from its begin to the arrival of the last group: after that a rank has
nothing left to compute. Where gradients of several batches add up, a step has as many backwards, and groups of the last
alone come late in all of them. Not where the host runs ahead of a GPU: there arrivals are those of launches.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from topout.analyze.accelerator import runs_ahead
from topout.schema.event import Kind
from topout.study.bootstrap import Floats
from topout.trace.table import Int64s, RankTable


@dataclass(frozen=True)
class Groups:
    """In the order in which they become complete."""

    ready: tuple[float, ...]
    shares: tuple[float, ...]
    """Of the bytes of a step."""


@dataclass(frozen=True)
class _Backward:
    took_ns: int
    """To its own end, or to the arrival of the last group it sent."""
    moments_ns: Int64s
    """When it sent, after its begin."""
    sizes: Int64s


def seen_groups(tables: Sequence[RankTable]) -> Groups | None:
    """Medians over steps and ranks of those steps that had the usual number of groups; None where none was seen."""
    steps = [step for table in tables if not runs_ahead(table) for step in _by_step(table)]
    found = [one for step in steps if (one := _moments(step)) is not None]
    if not found:
        return None
    counts = [len(moments) for moments, _ in found]
    usual = max(set(counts), key=counts.count)
    moments = np.median([moments for moments, _ in found if len(moments) == usual], axis=0)
    sizes = np.median([sizes for moments, sizes in found if len(moments) == usual], axis=0)
    return Groups(
        tuple(round(float(moment), 4) for moment in moments), tuple(round(float(s), 6) for s in sizes / sizes.sum())
    )


def first_ready(tables: Sequence[RankTable], usual: float) -> float | None:
    """As a share of all backwards of a step, where the first group of a backward is ready after its share `usual`.

    None where a step has one backward. Where none was seen to send, the last alone is taken to.
    """
    steps = [step for table in tables for step in _by_step(table)]
    num = round(float(np.median([len(step) for step in steps]))) if steps else 1
    if num < 2:
        return None
    sending = round(float(np.median([sum(len(one.sizes) > 0 for one in step) for step in steps])))
    return round((num - max(1, sending) + usual) / num, 4)


def _moments(step: Sequence[_Backward]) -> tuple[Floats, Int64s] | None:
    """Shares of a step's backwards, one after another, and bytes; None where it sent nothing, or of unknown size."""
    begins_ns = np.cumsum([0, *(one.took_ns for one in step)])
    moments_ns = np.concatenate([begin + one.moments_ns for begin, one in zip(begins_ns[:-1], step, strict=True)])
    sizes = np.concatenate([one.sizes for one in step])
    if len(sizes) == 0 or sizes.min() <= 0 or begins_ns[-1] <= 0:
        return None
    return moments_ns / begins_ns[-1], sizes


def _by_step(table: RankTable) -> Iterator[list[_Backward]]:
    """The backwards of each step that has any."""
    arrivals = table.rows_of_any_thread(Kind.ARRIVAL)
    arrivals = arrivals[np.argsort(table.start_ns[arrivals], kind="stable")]
    moments_ns = table.start_ns[arrivals]
    backward = table.rows(Kind.BACKWARD)
    first = np.searchsorted(moments_ns, table.start_ns[backward])
    behind = np.searchsorted(moments_ns, table.end_ns[backward], side="right")
    ends_ns = np.sort(table.end_ns[table.rows(Kind.STEP)])
    number = np.searchsorted(ends_ns, table.start_ns[backward], side="right")
    step: list[_Backward] = []
    for place, (row, begin, end) in enumerate(zip(backward, first, behind, strict=True)):
        own_ns = moments_ns[begin:end] - table.start_ns[row]
        took_ns = int(own_ns[-1]) if end > begin else int(table.duration_ns[row])
        step.append(_Backward(took_ns, own_ns, table.value[arrivals[begin:end]]))
        is_last = place + 1 == len(backward) or number[place + 1] != number[place]
        if is_last:
            # what follows the last step is a part of one
            if number[place] < len(ends_ns):
                yield step
            step = []
