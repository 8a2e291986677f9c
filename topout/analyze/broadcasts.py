"""DDP's broadcast of buffers: it blocks inside forward, and leaves no row but the ranks' arrivals.

Gloo sends along a binomial tree from the group's first rank, and a send completes only when the other side is there:
so a rank waits for its parent, and for its children, too. Not for broadcasts that the script calls itself; those have
rows.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from topout.analyze.accelerator import runs_ahead
from topout.analyze.segments import Stretches
from topout.schema.event import Kind
from topout.trace.table import Bools, Int64s, RankTable

_HOLDING = (Kind.BACKWARD, Kind.COLLECTIVE, Kind.OPTIMIZER)
"""Inside these rows somebody else accounts for communication."""
_ABSENT = np.iinfo(np.int64).min


def find_broadcast_waits(tables: Sequence[RankTable]) -> list[Stretches]:
    """For each rank, when it stood in a broadcast because another rank had not come."""
    rows = [_loose_broadcasts(table) for table in tables]
    waits = [Stretches.none() for _ in tables]
    ids = [np.unique(table.name_id[own]) for table, own in zip(tables, rows, strict=True)]
    groups = {table.names[number] for table, own in zip(tables, ids, strict=True) for number in own}
    for name in sorted(groups):
        own = [_of_name(table, chosen, name) for table, chosen in zip(tables, rows, strict=True)]
        members = [r for r, chosen in enumerate(own) if len(chosen)]
        arrivals_ns = _arrivals([tables[r] for r in members], [own[r] for r in members])
        released_ns = released(arrivals_ns)
        for place, r in enumerate(members):
            start_ns = arrivals_ns[:, place]
            is_there = start_ns != _ABSENT
            end_ns = np.minimum(released_ns[is_there, place], _next_row(tables[r], start_ns[is_there]))
            waits[r] += Stretches(start_ns[is_there], end_ns)
    return waits


def released(arrivals_ns: Int64s) -> Int64s:
    """[broadcasts, members]: when each member may go on; members are in the group's order, the source first."""
    num_members = arrivals_ns.shape[1]
    has_data_ns = arrivals_ns.copy()
    for member in range(1, num_members):
        parent = member ^ (1 << (member.bit_length() - 1))
        has_data_ns[:, member] = np.maximum(arrivals_ns[:, member], has_data_ns[:, parent])
    result = has_data_ns.copy()
    for member in range(1, num_members):
        parent = member ^ (1 << (member.bit_length() - 1))
        result[:, parent] = np.maximum(result[:, parent], arrivals_ns[:, member])
    return result


def _arrivals(tables: Sequence[RankTable], rows: Sequence[NDArray[np.intp]]) -> Int64s:
    """[broadcasts, ranks], matched by sequence number."""
    numbers = np.unique(np.concatenate([table.ref[own] for table, own in zip(tables, rows, strict=True)]))
    arrivals_ns = np.full((len(numbers), len(tables)), _ABSENT, dtype=np.int64)
    for place, (table, own) in enumerate(zip(tables, rows, strict=True)):
        arrivals_ns[np.searchsorted(numbers, table.ref[own]), place] = table.start_ns[own]
    return arrivals_ns


def _loose_broadcasts(table: RankTable) -> NDArray[np.intp]:
    none = np.empty(0, dtype=np.intp)
    ids = [number for number, name in enumerate(table.names) if name.partition("@")[0] == "broadcast"]
    if not ids or runs_ahead(table):
        return none
    arrivals = table.rows_of_any_thread(Kind.ARRIVAL)
    arrivals = arrivals[np.isin(table.name_id[arrivals], ids) & (table.ref[arrivals] >= 0)]
    loose: NDArray[np.intp] = arrivals[~is_inside(table, table.start_ns[arrivals], table.rows_of_any_thread(*_HOLDING))]
    return loose


def _of_name(table: RankTable, rows: NDArray[np.intp], name: str) -> NDArray[np.intp]:
    ids = [number for number, known in enumerate(table.names) if known == name]
    own: NDArray[np.intp] = rows[np.isin(table.name_id[rows], ids)]
    return own


def _next_row(table: RankTable, times_ns: Int64s) -> Int64s:
    """What the forward or evaluation around a broadcast is followed by: the wait ends there at the latest."""
    rows = table.rows(Kind.INPUT, Kind.BACKWARD, Kind.OPTIMIZER, Kind.CHECKPOINT, Kind.COLLECTIVE, Kind.EVALUATION)
    starts = np.append(table.start_ns[rows], np.iinfo(np.int64).max)
    return starts[np.searchsorted(starts, times_ns)]


def is_inside(table: RankTable, times_ns: Int64s, rows: NDArray[np.intp]) -> Bools:
    """Whether each time lies within one of these rows."""
    if len(rows) == 0:
        return np.zeros(len(times_ns), dtype=bool)
    reach_ns = np.maximum.accumulate(table.end_ns[rows])
    before = np.searchsorted(table.start_ns[rows], times_ns, side="right") - 1
    inside: Bools = (before >= 0) & (reach_ns[np.maximum(before, 0)] >= times_ns)
    return inside
