"""Ranks that somebody stopped (SIGSTOP) and nobody continues: after a while the job is to end.

A stopped rank holds all others at the next collective, without a word; `watchdog` names it meanwhile. Not for ranks
that hang while running.
"""

from __future__ import annotations

from collections.abc import Mapping

from topout.schema.light_dataclass import dataclass, field

_LARGEST_GAP_S = 5.0
"""Observed less often than this, the launcher itself was stopped, and so was its clock on others."""


@dataclass(kw_only=True)
class StoppedRanks:
    """Remembers since when each rank has been stopped. Times in seconds of any monotonic clock."""

    ended_after_s: float
    _since: dict[int, float] = field(default_factory=dict)
    _last_look: float | None = None

    def look(self, now: float, states: Mapping[int, str | None]) -> int | None:
        """The rank for which the job has waited long enough."""
        if self._last_look is not None and now - self._last_look > _LARGEST_GAP_S:
            self._since.clear()
        self._last_look = now
        stopped = [rank for rank, state in states.items() if state == "T"]
        self._since = {rank: self._since.get(rank, now) for rank in stopped}
        return next((rank for rank in stopped if now - self._since[rank] >= self.ended_after_s), None)
