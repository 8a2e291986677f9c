"""What holds a job up, told from one look at all its ranks: who is missing where, and what it does instead.

In order of certainty: a stopped process, a host that has gone silent, a rank that others wait for, ranks that wait for
each other, ranks that just take long. How long is too long is not decided here; see `watchdog`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum

from topout.launch.observation import Observation
from topout.launch.waits import Meeting, Wait, wait_of, waited_for
from topout.schema.light_dataclass import dataclass

SILENT_AFTER_S = 4.0
"""A rank looks at itself once a second; after so many misses it does not answer."""
UNHEARD_AFTER_S = 5.0
_WORK = {"import": "imports", "compile": "compiles", "checkpoint": "saves a checkpoint", "evaluation": "evaluates"}
"""Phases that take their time."""
_WAITS_FOR_INPUT = {"input": "waits for input"}
_HELD = {"D": "the kernel holds it: storage or a driver"}
_ACTIVITY = {"R": "computes", "S": "sleeps", "D": "is held by the kernel (storage or a driver)"}
"""By the kernel's letter."""
_MOST_NAMED = 4


class Cause(StrEnum):
    """What kind of hold-up it is."""

    STOPPED = "stopped"
    UNHEARD = "unheard"
    MISSING = "missing"
    DEADLOCK = "deadlock"
    SLOW = "slow"


@dataclass(frozen=True, kw_only=True)
class Holdup:
    """One hold-up as it looks now."""

    cause: Cause
    ranks: tuple[int, ...]
    """To blame; in a deadlock those that wait."""
    age_s: float
    sentence: str
    is_urgent: bool = True
    """Nothing speaks for its ending by itself."""
    is_work: bool = False
    """The ranks do something that takes its time and may well do so again."""
    place: str = ""
    """Where the first of them is, in the script."""


def find_holdup(observations: Sequence[Observation], activity: Mapping[int, str]) -> Holdup | None:
    """`activity` is the kernel's letter that each rank mostly had of late. None: all get on, or nobody can tell."""
    living = [item for item in observations if not item.is_over]
    stopped = [item for item in living if item.process_state == "T"]
    # what a rank that does not answer last said of collectives is old
    answering = [item for item in living if item.process_state != "T" and not _is_silent(item)]
    waits = {item.rank: wait for item in answering if item.page is not None and (wait := wait_of(item.page))}
    if stopped:
        return _stopped(stopped, waits)
    unheard = [item for item in living if item.heard_age_s >= UNHEARD_AFTER_S]
    if unheard:
        return _unheard(unheard)
    if waits:
        return _held_in_a_collective(waits, observations, activity)
    return _slow(living, activity)


def _stopped(stopped: list[Observation], waits: dict[int, Wait]) -> Holdup:
    first = stopped[0]
    verb = "is" if len(stopped) == 1 else "are"
    held = ""
    if waits:
        longest = max(waits.values(), key=lambda wait: wait.age_s)
        same = [rank for rank, wait in waits.items() if wait.meeting == longest.meeting]
        held = f", and {_wait_words(same)} in {longest}"
    return Holdup(
        cause=Cause.STOPPED,
        ranks=tuple(item.rank for item in stopped),
        age_s=0.0,  # since when, only somebody who looks again and again can tell
        sentence=f"{_who(stopped)} {verb} stopped{held}{_last_seen(first)}; continue it with kill -CONT {first.pid}",
        place=_line(first),
    )


def _unheard(unheard: list[Observation]) -> Holdup:
    hosts = ", ".join(dict.fromkeys(item.host for item in unheard))
    ranks = _ranks([item.rank for item in unheard])
    age_s = max(item.heard_age_s for item in unheard)
    return Holdup(
        cause=Cause.UNHEARD,
        ranks=tuple(item.rank for item in unheard),
        age_s=age_s,
        sentence=f"no word from {hosts} ({ranks}) for {age_s:.0f} s{_last_seen(unheard[0])}",
        place=_line(unheard[0]),
    )


def _held_in_a_collective(
    waits: dict[int, Wait], observations: Sequence[Observation], activity: Mapping[int, str]
) -> Holdup:
    behind = waited_for(waits.values(), observations)
    # a rank that itself waits is held up by another: only those at the end of the chain are to blame
    roots = set[int]().union(*behind.values()) - set(waits)
    missing = [item for item in observations if item.rank in roots and not _is_silent(item)]
    if missing:
        held_up = {meeting for meeting, ranks in behind.items() if missing[0].rank in ranks}
        held = [wait for wait in waits.values() if wait.meeting in held_up]
        return _missing(missing, max(held, key=lambda wait: wait.age_s), waits, activity)
    silent = [item for item in observations if _is_silent(item) and not item.is_over]
    if silent:
        return _missing(silent, max(waits.values(), key=lambda wait: wait.age_s), waits, activity)
    return _deadlock(waits, observations)


def _missing(missing: list[Observation], held: Wait, waits: dict[int, Wait], activity: Mapping[int, str]) -> Holdup:
    first, page = missing[0], missing[0].page
    waiting = _wait_words([rank for rank, wait in waits.items() if wait.meeting == held.meeting])
    verb = "has" if len(missing) == 1 else "have"
    subject = "it" if len(missing) == 1 else _who([first])
    if _is_silent(first) or held.number is None:  # where it is in the group, nobody knows
        sentence = f"{_who([first])} {_doing(first, activity)}, while {waiting} in {held}"
    else:
        sentence = f"{_who(missing)} {verb} not reached {held}, in which {waiting}; {subject} {_doing(first, activity)}"
    gets_on = page is not None and page.progress_age_s is not None and page.progress_age_s < SILENT_AFTER_S
    return Holdup(
        cause=Cause.MISSING,
        ranks=tuple(item.rank for item in missing),
        age_s=held.age_s,
        sentence=sentence,
        is_urgent=not gets_on,
        is_work=gets_on or (page is not None and page.phase in _WORK),
        place=_line(first),
    )


def _deadlock(waits: dict[int, Wait], observations: Sequence[Observation]) -> Holdup:
    lines = {item.rank: f" at {_line(item)}" if _line(item) else "" for item in observations}
    meetings: dict[Meeting, list[int]] = {}
    for rank, wait in waits.items():
        meetings.setdefault(wait.meeting, []).append(rank)
    parts = [f"{_ranks(r)} in {waits[r[0]]}{lines[r[0]]}" for r in list(meetings.values())[:_MOST_NAMED]]
    first = next(iter(waits))
    return Holdup(
        cause=Cause.DEADLOCK,
        ranks=tuple(waits),
        age_s=min(wait.age_s for wait in waits.values()),
        sentence=f"the ranks wait in different collectives: {', '.join(parts)}"
        if len(meetings) > 1
        else f"{_wait_words(list(waits))} in {waits[first]}{lines[first]}, and no rank is missing there",
        place=next(_line(item) for item in observations if item.rank == first),
    )


def _slow(living: Sequence[Observation], activity: Mapping[int, str]) -> Holdup | None:
    """Nobody waits for another. Without steps nothing is known about who gets on."""
    training = [item for item in living if item.page is not None and item.page.num_steps > 0]
    ages_s = [item.page.progress_age_s for item in training if item.page and item.page.progress_age_s is not None]
    if not training or not ages_s:
        return None
    blamed = _odd_ones(training)
    first, page = blamed[0], blamed[0].page
    assert page is not None
    is_work = page.phase in _WORK or activity.get(first.rank) == "R"
    is_steady = page.usual_step_s is not None  # before the second step, nobody knows what is usual
    several = f"{_who(blamed)} do not get on; " if len(blamed) > 1 else ""
    return Holdup(
        cause=Cause.SLOW,
        ranks=tuple(item.rank for item in blamed),
        age_s=min(ages_s),
        sentence=f"{several}{_who([first])} {_doing(first, activity)}",
        is_urgent=_is_silent(first) or (is_steady and not is_work),
        is_work=is_work and not _is_silent(first),
        place=_line(first),
    )


def _odd_ones(training: list[Observation]) -> list[Observation]:
    """Those that differ: no answer, fewer steps than others, or at another line than most. Else all."""
    silent = [item for item in training if _is_silent(item)]
    if silent:
        return silent
    steps = [item.page.num_steps for item in training if item.page]
    behind = [item for item in training if item.page and item.page.num_steps == min(steps)]
    if len(behind) < len(training):
        return behind
    ((line, count),) = Counter(_line(item) for item in training).most_common(1)
    elsewhere = [item for item in training if _line(item) != line]
    return elsewhere if elsewhere and count > len(elsewhere) else training


def _is_silent(item: Observation) -> bool:
    page = item.page
    return page is not None and page.look_age_s is not None and page.look_age_s >= SILENT_AFTER_S


# words


def _who(items: Sequence[Observation]) -> str:
    if len(items) > 1:
        return _ranks([item.rank for item in items])
    pid = f" (pid {items[0].pid})" if items[0].pid is not None else ""
    return f"rank {items[0].rank} on {items[0].host}{pid}"


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    named = ", ".join(map(str, ranks[:_MOST_NAMED]))
    return f"ranks {named}" + (f" and {len(ranks) - _MOST_NAMED} more" if len(ranks) > _MOST_NAMED else "")


def _wait_words(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]} waits" if len(ranks) == 1 else f"{len(ranks)} ranks wait"


def _doing(item: Observation, activity: Mapping[int, str]) -> str:
    """What a rank that is not stopped does: a verb and where."""
    page, letter = item.page, activity.get(item.rank, "")
    if item.is_over:
        return "has ended"
    if page is None:
        return "is still starting"
    if _is_silent(item):
        held = _HELD.get(letter, "C code keeps Python's lock")
        return f"has not answered for {page.look_age_s or 0:.0f} s ({held}{_last_seen(item)})"
    inner = f" ({page.inner})" if page.inner else ""
    if page.phase == "compile":
        return f"compiles{inner}, called from {page.line or 'no line of the script'}"
    verb = (_WORK | _WAITS_FOR_INPUT).get(page.phase) or _ACTIVITY.get(letter, "was last seen")
    at = page.line or "no line of the script"
    return f"{verb} at {at}{inner}"


def _line(item: Observation) -> str:
    return item.page.line if item.page is not None else ""


def _last_seen(item: Observation) -> str:
    return f"; last seen at {_line(item)}" if _line(item) else ""
