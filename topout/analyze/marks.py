"""What the script said of itself with `topout.span` and `topout.count`, added up by name.

Not where the time goes: spans overlap each other and the phases of a step, and nobody knows what a count is of.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topout.analyze.steps import Phases
from topout.schema.event import Kind
from topout.schema.measures import Count
from topout.trace.table import Int64s, RankTable

HELD_BYTES = frozenset(f"memory.{what}_bytes" for what in ("parameters", "gradients", "optimizer", "peak"))
"""What ranks of a mesh say they hold comes as counts, but is a level: neither its sum nor its rate means anything."""


@dataclass(frozen=True, kw_only=True)
class NamedSpans:
    """The stretches that the script gave one name, of the whole recording."""

    name: str
    num_spans: int
    num_ranks: int
    total_ns: int
    """Over ranks."""
    longest_ns: int


def add_up_spans(tables: Sequence[RankTable]) -> list[NamedSpans]:
    """In the order in which the names appear."""
    found: dict[str, list[NamedSpans]] = {}
    for table in tables:
        for name, rows in _rows_by_name(table, Kind.SPAN):
            found.setdefault(name, []).append(_of_rank(name, table.duration_ns[rows]))
    return [
        NamedSpans(
            name=name,
            num_spans=sum(own.num_spans for own in by_rank),
            num_ranks=len(by_rank),
            total_ns=sum(own.total_ns for own in by_rank),
            longest_ns=max(own.longest_ns for own in by_rank),
        )
        for name, by_rank in found.items()
    ]


def _of_rank(name: str, duration_ns: Int64s) -> NamedSpans:
    return NamedSpans(
        name=name,
        num_spans=len(duration_ns),
        num_ranks=1,
        total_ns=int(duration_ns.sum()),
        longest_ns=int(duration_ns.max()),
    )


def measure_counts(tables: Sequence[RankTable], phases: Phases | None) -> tuple[Count, ...]:
    """Totals of all ranks; rates of the window, for which there must be steps."""
    totals = _sums(tables)
    if phases is None:
        return tuple(Count(name=name, total=total) for name, total in totals.items())
    inside = _sums(phases.tables, phases)
    return tuple(
        Count(
            name=name,
            total=total,
            window_total=inside.get(name, 0),
            per_s=inside.get(name, 0) / (phases.elapsed_ns / 1e9),
        )
        for name, total in totals.items()
    )


def _sums(tables: Sequence[RankTable], phases: Phases | None = None) -> dict[str, int]:
    """Of what was counted in these phases; without, of all."""
    sums: dict[str, int] = {}
    for number, table in enumerate(tables):
        for name, rows in _rows_by_name(table, Kind.COUNT):
            if name in HELD_BYTES:
                continue
            counted = rows if phases is None else rows[_is_inside(table.start_ns[rows], phases, number)]
            sums[name] = sums.get(name, 0) + int(table.value[counted].sum())
    return sums


def _is_inside(at_ns: Int64s, phases: Phases, number: int) -> NDArray[np.bool_]:
    """In the rank's own steps, or in an evaluation after the last of them; what else comes there counts for no step."""
    first_ns, end_ns = phases.own_ns[number]
    last_ns = phases.edges_ns[number, -1]
    evaluations = phases.segments[number].stretches("evaluation")
    begun = np.searchsorted(evaluations.start_ns, at_ns, side="right")
    # its end included: one that nothing follows ends with the last row, which may be the count itself
    ended = np.searchsorted(evaluations.end_ns, at_ns, side="left")
    is_evaluated = (at_ns >= end_ns) & (at_ns <= last_ns) & (begun > ended)
    is_inside: NDArray[np.bool_] = ((at_ns >= first_ns) & (at_ns < end_ns)) | is_evaluated
    return is_inside


def _rows_by_name(table: RankTable, kind: Kind) -> Iterator[tuple[str, NDArray[np.intp]]]:
    """The rows of any thread, those of one name together and in their order."""
    rows = table.rows_of_any_thread(kind)
    if len(rows) == 0:
        return
    rows = rows[np.argsort(table.name_id[rows], kind="stable")]
    for own in np.split(rows, 1 + np.flatnonzero(np.diff(table.name_id[rows]))):
        yield table.name(int(own[0])), own
