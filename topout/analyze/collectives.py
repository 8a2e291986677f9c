"""Collectives over ranks: who arrived last, how long the others waited for it, and how long the bytes then took.

    exposed  = end of the collective - own last arrival
    wait     = min(exposed, latest arrival over ranks - own last arrival)
    transfer = exposed - wait

An all-reduce equalises the ends of backward, so only arrivals tell who was late. Backward ends with the collective,
but a rank that still computes after its last bucket ends later: the first rank out of backward tells when the
collective was over. A rank that launches a collective and waits for it later arrives where it launches, and stands
where it waits. Not for collectives hidden behind computation: they cost nothing and do not appear here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from topout.analyze.accelerator import runs_ahead
from topout.analyze.broadcasts import find_broadcast_waits, is_inside
from topout.analyze.peers import is_tensor_parallel
from topout.analyze.segments import Stretches
from topout.analyze.unheard import without_arrivals
from topout.record.row_names import AWAITED, LAUNCHED
from topout.schema.event import Flag, Kind
from topout.schema.measures import Communication
from topout.trace.clocks import last_arrivals
from topout.trace.table import Bools, Int64s, KeyNumbers, RankTable, collective_keys

_NOTED_ASIDE = 0.01
"""Orders that a helper thread listens for are small beside what is trained with."""
_LEAST_OF_GRADIENTS = 0.5
"""They may be sent in half of their precision."""
_EARLIEST = np.iinfo(np.int64).min


@dataclass(frozen=True)
class Blocked:
    """When a rank stood in communication that nothing hid."""

    wait: Stretches
    transfer: Stretches
    tensor_wait: Stretches
    tensor_transfer: Stretches

    @property
    def tensor(self) -> Stretches:
        """In either part of a collective among tensor-parallel peers."""
        return self.tensor_wait + self.tensor_transfer


@dataclass(frozen=True)
class _Standing:
    """One rank's arrivals at collectives, and until when each held it."""

    keys: Int64s
    arrival_ns: Int64s
    start_ns: Int64s
    """Where it began to stand; later than the arrival where it had launched the collective before."""
    end_ns: Int64s
    is_backward: Bools
    """The end is that of a backward, not of the collective itself."""
    is_tensor: Bools
    """Among tensor-parallel peers."""


def find_blocked(tables: Sequence[RankTable]) -> list[Blocked]:
    """For each rank; tables must be on one clock."""
    numbers: KeyNumbers = {}
    # where one rank's arrivals are lost, the others' do not tell whom they waited for: all of it stays in backward
    is_heard = not without_arrivals(tables)
    standing = [_standing(table, numbers, is_heard=is_heard) for table in tables]
    keys = [rank.keys for rank in standing]
    latest_ns = _over_ranks(np.maximum, keys, [rank.arrival_ns for rank in standing])
    first_end_ns = _over_ranks(np.minimum, keys, [rank.end_ns for rank in standing])
    broadcasts = find_broadcast_waits(tables)
    blocked = []
    for rank, latest, first_end, broadcast in zip(standing, latest_ns, first_end_ns, broadcasts, strict=True):
        over_ns = np.where(rank.is_backward, np.maximum(first_end, np.minimum(latest, rank.end_ns)), rank.end_ns)
        turn_ns = np.clip(latest, rank.start_ns, np.maximum(over_ns, rank.start_ns))
        wait = Stretches(rank.start_ns, turn_ns)
        transfer = Stretches(turn_ns, np.maximum(over_ns, turn_ns))
        blocked.append(
            Blocked(
                wait=wait.where(~rank.is_tensor) + broadcast,
                transfer=transfer.where(~rank.is_tensor),
                tensor_wait=wait.where(rank.is_tensor),
                tensor_transfer=transfer.where(rank.is_tensor),
            )
        )
    return blocked


def _standing(table: RankTable, numbers: KeyNumbers, *, is_heard: bool) -> _Standing:
    called = table.rows(Kind.COLLECTIVE, Kind.PEERS)
    # a host that launches kernels arrives long before its device does: its stamps say nothing about waiting
    backward, arrival = last_arrivals(table) if is_heard and not runs_ahead(table) else (called[:0], called[:0])
    called_keys = collective_keys(table, called, numbers)
    start_ns = table.start_ns[called]
    arrival_keys, arrival_ns = collective_keys(table, arrival, numbers, is_arrival=True), table.start_ns[arrival]
    # where a rank waits for what it launched, the launch tells when it came
    is_later = table.is_named(called, AWAITED) & np.isin(called_keys, called_keys[table.is_named(called, LAUNCHED)])
    return _Standing(
        keys=np.concatenate([called_keys, arrival_keys]),
        arrival_ns=np.concatenate([np.where(is_later, _EARLIEST, start_ns), arrival_ns]),
        start_ns=np.concatenate([start_ns, arrival_ns]),
        end_ns=table.end_ns[np.concatenate([called, backward])],
        is_backward=np.arange(len(called) + len(backward)) >= len(called),
        is_tensor=np.concatenate([is_tensor_parallel(table, called), np.zeros(len(backward), dtype=bool)]),
    )


def _over_ranks(reduce: np.ufunc, keys: Sequence[Int64s], times_ns: Sequence[Int64s]) -> list[Int64s]:
    """For each time, the first or last of all ranks' times at the same collective; itself where nothing matches."""
    all_keys, all_ns = np.concatenate(keys), np.concatenate(times_ns)
    if len(all_keys) == 0:
        return list(times_ns)
    order = np.argsort(all_keys, kind="stable")
    sorted_keys = all_keys[order]
    is_new = np.append(True, sorted_keys[1:] != sorted_keys[:-1])
    extreme = reduce.reduceat(all_ns[order], np.flatnonzero(is_new))
    result = np.empty_like(all_ns)
    result[order] = np.where(sorted_keys >= 0, extreme[np.cumsum(is_new) - 1], all_ns[order])
    return np.split(result, np.cumsum([len(own) for own in keys])[:-1])


def has_communication(tables: Sequence[RankTable]) -> bool:
    return any(((table.kind == Kind.ARRIVAL) | (table.kind == Kind.COLLECTIVE)).any() for table in tables)


def hides_waits(tables: Sequence[RankTable]) -> bool:
    """Whether ranks may have stood waiting for bytes in a way that has no row: then bytes over transfer is no rate."""
    return any(bool(table.facts.get("polls_collectives")) or _waits_aside(table) for table in tables)


def _waits_aside(table: RankTable) -> bool:
    """In a helper thread, for which the main one may wait; a launch holds nobody, wherever it is made."""
    called = table.rows_of_any_thread(Kind.COLLECTIVE)
    is_aside = (table.flags[called] & int(Flag.OFF_MAIN_THREAD)) != 0
    num_bytes = np.maximum(table.value[called], 0)
    aside_bytes = num_bytes[is_aside & ~table.is_named(called, LAUNCHED)].sum()
    has_awaited = bool((is_aside & table.is_named(called, AWAITED)).any())
    return has_awaited or bool(aside_bytes > _NOTED_ASIDE * num_bytes.sum())


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
    num_messages: float | None = sum(len(own) for own in sizes) / len(tables)
    known = np.concatenate([own[own > 0] for own in sizes])
    bytes_per_step = float(known.sum()) / len(tables) / num_steps if len(known) else None
    transfer_s = shares["transfer"] * (window_ns[1] - window_ns[0]) / num_steps / 1e9
    is_rate_known = not hides_waits(tables)
    if any(map(runs_ahead, tables)) and not _are_gradients_in(bytes_per_step, tables):
        num_messages, bytes_per_step, known = None, None, known[:0]
    backends = {table.facts["backend"] for table in tables if table.facts.get("backend")}
    return Communication(
        wait_share=None if is_split_withheld else shares["wait"],
        transfer_share=shares["transfer"],
        is_split_withheld=is_split_withheld,
        clock_skew_ns=skew_ns,
        num_collectives_per_step=None if num_messages is None else num_messages / num_steps,
        bytes_per_step=bytes_per_step,
        mean_message_bytes=float(known.mean()) if len(known) else None,
        bytes_per_s=bytes_per_step / transfer_s if is_rate_known and bytes_per_step and transfer_s > 0 else None,
        backend=", ".join(sorted(backends)) or None,
    )


def _are_gradients_in(bytes_per_step: float | None, tables: Sequence[RankTable]) -> bool:
    """On devices only what the script calls is seen, not DDP's buckets: a loss that it adds up is not what is sent."""
    sizes = [size for table in tables if isinstance(size := table.facts.get("gradient_bytes"), int)]
    return bytes_per_step is not None and bool(sizes) and bytes_per_step >= _LEAST_OF_GRADIENTS * max(sizes)


def _message_bytes(table: RankTable, start_ns: int, end_ns: int) -> Int64s:
    """Sizes of the window's collectives; what the script called is also seen by the flight recorder; it counts once."""
    called = table.rows_of_any_thread(Kind.COLLECTIVE)
    called = called[~table.is_named(called, AWAITED)]
    arrivals = table.rows_of_any_thread(Kind.ARRIVAL)
    arrivals = arrivals[~is_inside(table, table.start_ns[arrivals], called)]
    rows = np.concatenate([called, arrivals])
    is_in_window = (table.start_ns[rows] >= start_ns) & (table.start_ns[rows] < end_ns)
    sizes: Int64s = table.value[rows[is_in_window]]
    return sizes
