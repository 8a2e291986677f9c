"""Ranks of a job that do not tell when they arrived at collectives: not recorded, or their arrivals lost.

Arrivals are read from torch's flight recorder when a script ends, so a rank that was killed has none. What the others
then wait for cannot be told from moving bytes, nor either from computing. Not for clocks that disagree: see `steps`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from topout.analyze.accelerator import runs_ahead
from topout.schema.event import Kind
from topout.trace.table import RankTable

_EAGER_KERAS = "torch"
"""The backend on which Keras does not compile a step into one function."""


def started_ranks(run: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The ranks in run.json; a run.json that was cut short by hand has none."""
    ranks = run.get("ranks")
    return [rank for rank in ranks if isinstance(rank, dict)] if isinstance(ranks, list) else []


def without_recording(tables: Sequence[RankTable], run: Mapping[str, Any]) -> list[int]:
    """Ranks that were started and left no file, or nothing in it that can be read."""
    told = {table.rank for table in tables if not is_empty(table)}
    return sorted((_numbers(run) | {table.rank for table in tables}) - told)


def _numbers(run: Mapping[str, Any]) -> set[int]:
    return {rank["rank"] for rank in started_ranks(run) if isinstance(rank.get("rank"), int)}


def is_empty(table: RankTable) -> bool:
    return len(table.kind) == 0 and not table.facts


def without_arrivals(tables: Sequence[RankTable]) -> list[int]:
    """Ranks that ran backward or called collectives, and of whose arrivals at them nothing is known."""
    return [table.rank for table in tables if _is_heard_by_arrivals(table) and not _has(table, Kind.ARRIVAL)]


def _is_heard_by_arrivals(table: RankTable) -> bool:
    # a device's waiting, a compiled step's and a pipeline's are seen elsewhere or not at all
    is_seen_otherwise = runs_ahead(table) or is_compiled_whole(table) or _has(table, Kind.SCHEDULE)
    return not is_seen_otherwise and _has(table, Kind.BACKWARD, Kind.COLLECTIVE)


def are_alone(tables: Sequence[RankTable]) -> bool:
    """Several ranks without a process group of torch's: nothing that is recorded joins them."""
    return len(tables) > 1 and all(map(_is_alone, tables))


def _is_alone(table: RankTable) -> bool:
    is_joined = table.facts.get("backend") or _has(table, Kind.COLLECTIVE, Kind.ARRIVAL, Kind.PEERS)
    return not is_joined and table.ended_ns is not None and _is_heard_by_arrivals(table)


def _has(table: RankTable, *kinds: Kind) -> bool:
    return len(table.rows_of_any_thread(*kinds)) > 0


def is_compiled_whole(table: RankTable) -> bool:
    return table.facts.get("keras_backend") not in (None, _EAGER_KERAS)


def blind_phases(tables: Sequence[RankTable], run: Mapping[str, Any]) -> tuple[str, ...]:
    """Phases of these tables, all with steps, that may hold communication of any kind: what stands there is not known.

    Without arrivals it stays in backward; without a peer's recording, waiting for that peer looks like transfer.
    """
    absent = _numbers(run) - {table.rank for table in tables}
    if len(tables) + len(absent) < 2:
        return ()
    blind = []
    # of a job in which one rank trains, and joins no group, nothing is hidden
    is_lonely = len(tables) == 1 and _is_alone(tables[0])
    if without_arrivals(tables) and not is_lonely:
        blind.append("backward")
    if absent and any(_has(table, Kind.ARRIVAL, Kind.COLLECTIVE) for table in tables):
        blind.append("transfer")
    return tuple(blind)
