"""Clocks of several hosts on one axis: first by what each host takes for the time of day, then by when collectives end.

Within a host the monotonic clock is shared, and nothing is moved. Across hosts an all-reduce ends for all ranks at
nearly the same moment, so the median difference of those ends is the clocks' disagreement; what scatters around it is
`skew_ns`, and no effect smaller than that can be told. Not for recordings of one rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from topout.record.row_names import LAUNCHED
from topout.schema.event import Kind
from topout.trace.table import Counter, Int64s, KeyNumbers, RankTable, collective_keys

_FEWEST_ENDS = 3
"""Fewer common collectives than this say nothing about two clocks."""
_DEFAULT_GROUP = "0"
"""torch's name of the default group."""
_TO_SIGMA = 1.4826
"""Median absolute deviation of a normal distribution -> its standard deviation."""


@dataclass(frozen=True, kw_only=True)
class Aligned:
    """Tables whose times can be compared."""

    tables: list[RankTable]
    skew_ns: float | None
    """What the clocks of the hosts still disagree by; 0 on one host, None when nothing common was seen."""


def align(tables: Sequence[RankTable]) -> Aligned:
    """All tables on the axis of the first table's host."""
    hosts = list(dict.fromkeys(table.host for table in tables))
    if len(hosts) < 2:
        return Aligned(tables=list(tables), skew_ns=0.0)
    epoch_ns = {host: _epoch_of(tables, host) for host in hosts}
    reference_ns = epoch_ns[hosts[0]]
    moved = [_shifted(table, epoch_ns[table.host] - reference_ns) for table in tables]
    numbers: KeyNumbers = {}
    ends = [_collective_ends(table, numbers) for table in moved]
    reference = _earliest(moved, ends, hosts[0])
    corrections: dict[str, int] = {hosts[0]: 0}
    scatter: list[float | None] = []
    for host in hosts[1:]:
        late_ns = _differences(reference, _earliest(moved, ends, host))
        if len(late_ns) < _FEWEST_ENDS:
            scatter.append(None)
            continue
        middle = np.median(late_ns)
        corrections[host] = -round(float(middle))
        scatter.append(float(np.median(np.abs(late_ns - middle))) * _TO_SIGMA)
    known = [value for value in scatter if value is not None]
    return Aligned(
        tables=[_shifted(table, corrections.get(table.host, 0)) for table in moved],
        skew_ns=max(known) if len(known) == len(scatter) else None,
    )


def _epoch_of(tables: Sequence[RankTable], host: str) -> int:
    """Nanoseconds from the host's monotonic clock to the time of day; 0 when no rank told."""
    pairs = [pair for table in tables if table.host == host for pair in table.facts.get("clock_pairs") or []]
    differences = [int(pair[1]) - int(pair[0]) for pair in pairs if len(pair) == 2]
    return int(np.median(np.array(differences, dtype=np.int64))) if differences else 0


def _shifted(table: RankTable, by_ns: int) -> RankTable:
    if by_ns == 0:
        return table
    counters = {
        name: Counter(times_ns=counter.times_ns + by_ns, values=counter.values)
        for name, counter in table.counters.items()
    }
    ended_ns = None if table.ended_ns is None else table.ended_ns + by_ns
    return replace(table, start_ns=table.start_ns + by_ns, counters=counters, ended_ns=ended_ns)


def _collective_ends(table: RankTable, numbers: KeyNumbers) -> tuple[Int64s, Int64s]:
    """Keys and ends: of what the script called itself, and of backward by the last bucket inside it."""
    called = table.rows(Kind.COLLECTIVE, Kind.PEERS)
    called = called[~table.is_named(called, LAUNCHED)]
    backward, arrival = last_arrivals(table)
    keys = [collective_keys(table, called, numbers), collective_keys(table, arrival, numbers, is_arrival=True)]
    return np.concatenate(keys), table.end_ns[np.concatenate([called, backward])]


def last_arrivals(table: RankTable) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows of backwards in which the rank arrived at collectives, and the row of the last arrival in each."""
    backward = table.rows(Kind.BACKWARD)
    end_ns = table.end_ns[backward]
    # checkpointed activations run a backward inside a backward: the outer one ends with the collective
    is_outer = end_ns > np.maximum.accumulate(np.concatenate([[np.iinfo(np.int64).min], end_ns]))[:-1]
    backward, end_ns = backward[is_outer], end_ns[is_outer]
    arrivals = table.rows_of_any_thread(Kind.ARRIVAL)
    arrivals = arrivals[~_is_awaited(table, arrivals)]
    last = np.searchsorted(table.start_ns[arrivals], end_ns, side="right") - 1
    is_inside = last >= 0
    is_inside[is_inside] = table.start_ns[arrivals[last[is_inside]]] >= table.start_ns[backward[is_inside]]
    return backward[is_inside], arrivals[last[is_inside]]


def _is_awaited(table: RankTable, arrivals: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Arrivals in groups whose collectives are waited for one by one: a backward does not end with them."""
    groups = {table.name(int(row)).partition("@")[2] for row in _one_of_each(table, Kind.PEERS)}
    if not groups:
        return np.zeros(len(arrivals), dtype=bool)
    # the flight recorder names no default group, functional collectives do
    ids = [number for number, name in enumerate(table.names) if (name.partition("@")[2] or _DEFAULT_GROUP) in groups]
    return np.isin(table.name_id[arrivals], ids)


def _one_of_each(table: RankTable, kind: Kind) -> NDArray[np.intp]:
    """One row for every name of this kind."""
    rows = table.rows_of_any_thread(kind)
    return rows[np.unique(table.name_id[rows], return_index=True)[1]]


def _earliest(tables: Sequence[RankTable], ends: Sequence[tuple[Int64s, Int64s]], host: str) -> tuple[Int64s, Int64s]:
    """Keys of the host's collectives in order, and the first of its ranks' ends of each."""
    own = [pair for table, pair in zip(tables, ends, strict=True) if table.host == host]
    keys, end_ns = (np.concatenate(column) for column in zip(*own, strict=True))
    order = np.lexsort((end_ns, keys))
    found, first = np.unique(keys[order], return_index=True)
    is_known = found >= 0
    return found[is_known], end_ns[order][first][is_known]


def _differences(first: tuple[Int64s, Int64s], second: tuple[Int64s, Int64s]) -> Int64s:
    """How much later the second host's clock shows the end of each collective that both took part in."""
    _, in_first, in_second = np.intersect1d(first[0], second[0], assume_unique=True, return_indices=True)
    return second[1][in_second] - first[1][in_first]
