"""Collectives over ranks: who arrived last, how long the others waited for it, and how long the bytes then took.

    exposed  = end of backward - own last arrival
    wait     = min(exposed, latest arrival over ranks - own last arrival)
    transfer = exposed - wait

An all-reduce equalises the ends of backward, so only arrivals tell who was late. Not for collectives hidden behind
computation: they cost nothing and do not appear here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topout.analyze.segments import Stretches
from topout.schema.event import Kind
from topout.schema.measures import Communication
from topout.trace.clocks import last_arrivals
from topout.trace.table import Bools, Int64s, KeyNumbers, RankTable, collective_keys

_SYNCHRONISING = (Kind.BACKWARD, Kind.COLLECTIVE, Kind.OPTIMIZER)


@dataclass(frozen=True)
class Blocked:
    """When a rank stood in communication that nothing hid."""

    wait: Stretches
    transfer: Stretches


@dataclass(frozen=True)
class _Standing:
    """One rank's arrivals at collectives, and until when each held it."""

    keys: Int64s
    arrival_ns: Int64s
    end_ns: Int64s


def find_blocked(tables: Sequence[RankTable]) -> list[Blocked]:
    """For each rank; tables must be on one clock."""
    numbers: KeyNumbers = {}
    standing = [_standing(table, numbers) for table in tables]
    latest_ns = _latest([rank.arrival_ns for rank in standing], [rank.keys for rank in standing])
    broadcasts = _broadcast_waits(tables, numbers)
    blocked = []
    for rank, latest, broadcast in zip(standing, latest_ns, broadcasts, strict=True):
        turn_ns = np.clip(latest, rank.arrival_ns, rank.end_ns)
        wait = Stretches(rank.arrival_ns, turn_ns) + broadcast
        blocked.append(Blocked(wait=wait, transfer=Stretches(turn_ns, rank.end_ns)))
    return blocked


def _standing(table: RankTable, numbers: KeyNumbers) -> _Standing:
    called = table.rows(Kind.COLLECTIVE)
    # a host that launches kernels arrives long before its device does: its stamps say nothing about waiting
    backward, arrival = last_arrivals(table) if not runs_ahead(table) else (called[:0], called[:0])
    keys = [collective_keys(table, called, numbers), collective_keys(table, arrival, numbers, is_arrival=True)]
    return _Standing(
        keys=np.concatenate(keys),
        arrival_ns=table.start_ns[np.concatenate([called, arrival])],
        end_ns=table.end_ns[np.concatenate([called, backward])],
    )


def runs_ahead(table: RankTable) -> bool:
    """Whether the rank drives an accelerator that keeps its own time."""
    return bool((table.kind == Kind.DEVICE).any())


def _latest(arrival_ns: Sequence[Int64s], keys: Sequence[Int64s]) -> list[Int64s]:
    """For each arrival, when the last rank arrived at the same collective; its own time where nothing matches."""
    all_keys, all_ns = np.concatenate(keys), np.concatenate(arrival_ns)
    if len(all_keys) == 0:
        return list(arrival_ns)
    order = np.argsort(all_keys, kind="stable")
    sorted_keys = all_keys[order]
    first = np.flatnonzero(np.append(True, sorted_keys[1:] != sorted_keys[:-1]))
    latest = np.maximum.reduceat(all_ns[order], first)
    group = np.cumsum(np.append(False, sorted_keys[1:] != sorted_keys[:-1]))
    result = np.empty_like(all_ns)
    result[order] = np.where(sorted_keys >= 0, latest[group], all_ns[order])
    return np.split(result, np.cumsum([len(own) for own in keys])[:-1])


def _broadcast_waits(tables: Sequence[RankTable], numbers: KeyNumbers) -> list[Stretches]:
    """DDP sends buffers from its first rank in every forward; who comes earlier stands there until that rank does."""
    rows = [_loose_broadcasts(table) if not runs_ahead(table) else np.empty(0, dtype=np.intp) for table in tables]
    keys = [collective_keys(table, own, numbers, is_arrival=True) for table, own in zip(tables, rows, strict=True)]
    times = [table.start_ns[own] for table, own in zip(tables, rows, strict=True)]
    all_keys = np.concatenate(keys) if keys else np.empty(0, dtype=np.int64)
    # ranks stand in order, so the first of each key is the source's
    known, first = np.unique(all_keys, return_index=True)
    source_ns = np.concatenate(times)[first] if len(known) else np.empty(0, dtype=np.int64)
    waits = []
    for table, own_keys, own_ns in zip(tables, keys, times, strict=True):
        if len(own_keys) == 0:
            waits.append(Stretches.none())
            continue
        sent_ns = source_ns[np.searchsorted(known, own_keys)]
        ends = np.minimum(np.maximum(sent_ns, own_ns), _next_row(table, own_ns))
        waits.append(Stretches(own_ns, np.where(own_keys >= 0, ends, own_ns)))
    return waits


def _loose_broadcasts(table: RankTable) -> NDArray[np.intp]:
    is_broadcast = np.array([name.partition("@")[0] == "broadcast" for name in table.names or ("",)])
    arrivals = table.rows_of_any_thread(Kind.ARRIVAL)
    arrivals = arrivals[is_broadcast[np.minimum(table.name_id[arrivals], len(is_broadcast) - 1)]]
    loose: NDArray[np.intp] = arrivals[~_inside(table, table.start_ns[arrivals], *_SYNCHRONISING)]
    return loose


def _inside(table: RankTable, times_ns: Int64s, *kinds: Kind) -> Bools:
    """Whether each time lies within a row of these kinds."""
    rows = table.rows_of_any_thread(*kinds)
    if len(rows) == 0:
        return np.zeros(len(times_ns), dtype=bool)
    reach_ns = np.maximum.accumulate(table.end_ns[rows])
    before = np.searchsorted(table.start_ns[rows], times_ns, side="right") - 1
    return (before >= 0) & (reach_ns[np.maximum(before, 0)] >= times_ns)


def _next_row(table: RankTable, times_ns: Int64s) -> Int64s:
    rows = table.rows(Kind.INPUT, Kind.BACKWARD, Kind.OPTIMIZER, Kind.CHECKPOINT, Kind.COLLECTIVE, Kind.EVALUATION)
    starts = np.append(table.start_ns[rows], np.iinfo(np.int64).max)
    return starts[np.searchsorted(starts, times_ns)]


def has_communication(tables: Sequence[RankTable]) -> bool:
    return any(((table.kind == Kind.ARRIVAL) | (table.kind == Kind.COLLECTIVE)).any() for table in tables)


def measure_communication(
    tables: Sequence[RankTable],
    window_ns: tuple[int, int],
    num_steps: int,
    shares: dict[str, float],
    *,
    skew_ns: float | None,
    is_split_withheld: bool,
) -> Communication:
    """Sizes and rates of what was sent inside the window, as one rank sees it; `shares` are the mean shares."""
    sizes = [_message_bytes(table, *window_ns) for table in tables]
    num_messages = sum(len(own) for own in sizes) / len(tables)
    known = np.concatenate([own[own > 0] for own in sizes])
    bytes_per_step = float(known.sum()) / len(tables) / num_steps if len(known) else None
    transfer_s = shares["transfer"] * (window_ns[1] - window_ns[0]) / num_steps / 1e9
    backends = {table.facts["backend"] for table in tables if table.facts.get("backend")}
    return Communication(
        wait_share=None if is_split_withheld else shares["wait"],
        transfer_share=shares["transfer"],
        is_split_withheld=is_split_withheld,
        clock_skew_ns=skew_ns,
        num_collectives_per_step=num_messages / num_steps,
        bytes_per_step=bytes_per_step,
        mean_message_bytes=float(known.mean()) if len(known) else None,
        bytes_per_s=bytes_per_step / transfer_s if bytes_per_step and transfer_s > 0 else None,
        backend=", ".join(sorted(backends)) or None,
    )


def _message_bytes(table: RankTable, start_ns: int, end_ns: int) -> Int64s:
    """Sizes of the window's collectives; what the script called is also seen by the flight recorder; it counts once."""
    called = table.rows_of_any_thread(Kind.COLLECTIVE)
    arrivals = table.rows_of_any_thread(Kind.ARRIVAL)
    arrivals = arrivals[~_inside(table, table.start_ns[arrivals], Kind.COLLECTIVE)]
    rows = np.concatenate([called, arrivals])
    is_in_window = (table.start_ns[rows] >= start_ns) & (table.start_ns[rows] < end_ns)
    sizes: Int64s = table.value[rows[is_in_window]]
    return sizes
