"""Keeps an eye on all ranks of a job once a second, and says what holds it up.

Observations of this host's ranks come from their pages and the kernel, those of other hosts over the wire. Not for
ending a job; `supervise` does, and only for ranks that are dead or stopped for good.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

from topout.launch.local_ranks import LocalRanks
from topout.launch.observation import Observation
from topout.launch.watchdog import Watchdog
from topout.schema.light_dataclass import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Watching:
    """The head's, or that of a job with a single launcher. `ask_elsewhere` asks ranks of other hosts for stacks."""

    def __init__(
        self,
        local: LocalRanks,
        watchdog: Watchdog,
        *,
        say: Callable[[str], None],
        ask_elsewhere: Callable[[Sequence[int]], None],
    ) -> None:
        self._local = local
        self._watchdog = watchdog
        self._say = say
        self._ask_elsewhere = ask_elsewhere
        self._heard: dict[int, tuple[float, list[dict[str, Any]]]] = {}
        self._finished: set[int] = set()

    def hear(self, member: int, observations: list[dict[str, Any]]) -> None:
        self._heard[member] = (time.monotonic(), observations)

    def finished(self, member: int) -> None:
        """All ranks of that launcher have ended; its silence means nothing from now on."""
        self._finished.add(member)

    def look(self, now: float) -> None:
        look = self._watchdog.look(now, [*self._local.observations(), *self._elsewhere(now)])
        for line in look.lines:
            self._say(line)
        if look.ask_stacks:
            here = self._local.ask_stacks(look.ask_stacks)
            self._ask_elsewhere([rank for rank in look.ask_stacks if rank not in here])
        self._watchdog.looked_until(time.monotonic())

    def _elsewhere(self, now: float) -> list[Observation]:
        found = []
        for member, (heard_at, contents) in self._heard.items():
            has_finished = member in self._finished
            for content in contents:
                with contextlib.suppress(TypeError, ValueError, KeyError):
                    observation = Observation.from_wire(content, heard_age_s=0.0 if has_finished else now - heard_at)
                    found.append(replace(observation, has_ended=observation.has_ended or has_finished))
        return found
