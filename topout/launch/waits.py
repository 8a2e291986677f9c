"""Which rank waits in which collective, and for whom: told by comparing how far each rank has come in each group.

Numbers are torch's flight recorder's where there is one (DDP's buckets are seen nowhere else), else those of the
collectives that the script called itself. A send or a receive has no number, so its partner cannot be told.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from topout.launch.observation import Observation
from topout.record.page_snapshot import Call, Snapshot
from topout.schema.light_dataclass import dataclass

_WAITS_AFTER_S = 2.0
"""A collective that has lasted less is under way."""
_INIT = "init"
_SCRIPT = "script:"
"""Begins the name of a group of which only the script's own calls are known."""

Meeting = tuple[str, int | None, str]
"""Group, number and operation."""


@dataclass(frozen=True, kw_only=True)
class Wait:
    """One rank inside one collective."""

    group: str
    number: int | None
    """Which of the group's collectives; None for a send or a receive."""
    operation: str
    num_bytes: int | None
    age_s: float

    @property
    def meeting(self) -> Meeting:
        """Equal for ranks that wait for each other in the same place."""
        return self.group, self.number, self.operation

    def __str__(self) -> str:
        number = f" #{self.number}" if self.number is not None and self.group != _INIT else ""
        size = f" ({shown_bytes(self.num_bytes)})" if self.num_bytes else ""
        name = self.group.rpartition(":")[2].removeprefix("@")
        group = f" of group {name}" if name not in ("", "0", _INIT) else ""
        return f"{self.operation}{number}{size}{group}"


def wait_of(page: Snapshot) -> Wait | None:
    """The collective that this rank has been in for a while."""
    if page.phase == _INIT:
        operation = "init_process_group"
        return Wait(group=_INIT, number=1, operation=operation, num_bytes=None, age_s=page.place_age_s or 0.0)
    if page.pending is not None:
        return _wait(page.pending, page.pending.group, page.pending.sequence)
    late = [item for item in page.positions if item.reached > item.completed and item.age_s >= _WAITS_AFTER_S]
    called = page.called if page.is_inside else None
    if late:
        oldest = max(late, key=lambda item: item.age_s)
        return Wait(
            group=oldest.group,
            number=oldest.completed + 1,
            operation=called.operation if called else "collective",
            num_bytes=called.num_bytes if called else None,
            age_s=oldest.age_s,
        )
    if called is not None and called.age_s >= _WAITS_AFTER_S:
        return _wait(called, _SCRIPT + called.group, called.sequence)
    return None


def _wait(call: Call, group: str, number: int | None) -> Wait:
    return Wait(group=group, number=number, operation=call.operation, num_bytes=call.num_bytes, age_s=call.age_s)


def reached(page: Snapshot | None, group: str) -> int | None:
    """Number of the last collective of this group that the rank has begun; None when it is no member, or not known."""
    is_default = _is_default(group)
    before_the_first = -1 if group.startswith(_SCRIPT) else 0
    if page is None:
        return before_the_first if is_default else None
    if group == _INIT:
        return 1 if page.phase == _INIT or page.has_process_group else 0
    if group.startswith(_SCRIPT):
        if page.called is None:
            return before_the_first if is_default else None
        return page.called.sequence if _SCRIPT + page.called.group == group else None
    for position in page.positions:
        if position.group == group:
            return position.reached
    return before_the_first if is_default and not page.positions else None


def waited_for(waits: Iterable[Wait], observations: Sequence[Observation]) -> dict[Meeting, list[int]]:
    """Ranks that have not begun what somebody waits in, by meeting. Of a send or a receive: all that wait in nothing.

    A job may have as many groups as hosts, so nobody looks at all ranks for each of them.
    """
    meetings = {wait.meeting: wait for wait in waits}
    members = _by_group(observations)
    behind: dict[Meeting, list[int]] = {}
    free: list[int] = []
    if any(wait.number is None for wait in meetings.values()):
        free = [item.rank for item in observations if item.page is None or wait_of(item.page) is None]
    for meeting, wait in meetings.items():
        # of the default group all ranks are members, also those that have not said so yet
        asked = observations if _is_default(wait.group) else members.get(wait.group, ())
        number = wait.number
        behind[meeting] = free if number is None else [it.rank for it in asked if _is_behind(it, wait.group, number)]
    return behind


def _by_group(observations: Sequence[Observation]) -> dict[str, list[Observation]]:
    """Those that name a group on their page."""
    members: dict[str, list[Observation]] = {}
    for item in observations:
        if item.page is None:
            continue
        named = {position.group for position in item.page.positions}
        if item.page.called is not None:
            named.add(_SCRIPT + item.page.called.group)
        for group in named:
            members.setdefault(group, []).append(item)
    return members


def _is_behind(item: Observation, group: str, number: int) -> bool:
    at = reached(item.page, group)
    return at is not None and at < number


def _is_default(group: str) -> bool:
    return group.rpartition(":")[2] in ("", "0", _INIT)


def shown_bytes(num_bytes: int) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.3g} {unit}"
    return f"{num_bytes} B"
