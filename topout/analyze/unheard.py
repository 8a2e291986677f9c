"""Ranks of a job that do not tell when they arrived at collectives: not recorded, or their arrivals lost.

Arrivals are read from torch's flight recorder when a script ends, so a rank that was killed has none. What the others
then wait for cannot be told from moving bytes, nor either from computing. Not for clocks that disagree: see `steps`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from topout.analyze.accelerator import runs_ahead
from topout.analyze.evaluations import computes_unseen
from topout.schema.event import NOT_GIVEN, Kind
from topout.trace.table import RankTable

_EAGER_KERAS = "torch"
"""The backend on which Keras does not compile a step into one function."""
_JOINING = (Kind.COLLECTIVE, Kind.ARRIVAL, Kind.PEERS)


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
    return not _is_joined(table) and table.ended_ns is not None and _is_heard_by_arrivals(table)


def _is_joined(table: RankTable) -> bool:
    return bool(table.facts.get("backend")) or _has(table, *_JOINING)


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


def hides_communication(tables: Sequence[RankTable], run: Mapping[str, Any]) -> bool:
    """Whether exposed communication lies inside a phase that computes, where no efficiency can see it.

    Not where ranks could have been heard and were not: those phases are blind.
    """
    if len(tables) + len(_numbers(run) - {table.rank for table in tables}) < 2:
        return False
    if len(tables) == 1 and runs_ahead(tables[0]) and not _is_joined(tables[0]):
        return False
    is_seen = _is_bare_pipeline(tables)
    return any(_is_compiled(table) or (runs_ahead(table) and not is_seen) for table in tables)


def _is_compiled(table: RankTable) -> bool:
    return is_compiled_whole(table) or (computes_unseen(table) and not _has(table, *_JOINING))


def _is_bare_pipeline(tables: Sequence[RankTable]) -> bool:
    """Stages on one rank each talk to their neighbours only, and events between micro-batches tell that, the bubble."""
    stages = [stage for table in tables for stage in np.unique(table.ref[table.rows(Kind.CHUNK)])]
    is_alone = len(set(stages)) == len(stages)
    return is_alone and all(_has(table, Kind.SCHEDULE) and not _meets_all(table) for table in tables)


def _meets_all(table: RankTable) -> bool:
    """Sends to neighbours, which have no number, are the pipeline's own."""
    called = table.rows_of_any_thread(Kind.COLLECTIVE)
    return _has(table, Kind.ARRIVAL, Kind.PEERS) or bool((table.ref[called] != NOT_GIVEN).any())


def why_unheard(tables: Sequence[RankTable]) -> str:
    """A sentence for ranks whose backward is blind."""
    if are_alone(tables):
        return (
            "Ranks against each other: the script made no process group of torch's. Where nothing else joins them, "
            "wait is only what ranks that were done first had left; efficiencies and a verdict are left out."
        )
    ranks = without_arrivals(tables)
    is_cut_off = any(table.ended_ns is None for table in tables if table.rank in ranks)
    why = "is read when a script ends, not when it is killed" if is_cut_off else "knew none"
    return (
        f"Communication: no arrivals of {named(ranks)} (torch's flight recorder {why}); waiting and transfer stand "
        "under backward, so efficiencies and a verdict are left out."
    )


def named(ranks: Sequence[int]) -> str:
    """rank 3; ranks 3, 5"""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
