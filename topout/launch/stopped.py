"""Ranks that somebody stopped (SIGSTOP): named after a while, and the job ended when nobody continues them.

A stopped rank holds all others at the next collective, without a word. Not for ranks that hang while running.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

_LARGEST_GAP_S = 5.0
"""Observed less often than this, the launcher itself was stopped, and so was its clock on others."""


@dataclass(kw_only=True)
class StoppedRanks:
    """Remembers since when each rank has been stopped. Times in seconds of any monotonic clock."""

    named_after_s: float
    ended_after_s: float
    _since: dict[int, float] = field(default_factory=dict)
    _named: set[int] = field(default_factory=set)
    _last_look: float | None = None

    def look(self, now: float, states: Mapping[int, str | None]) -> tuple[list[int], int | None]:
        """(ranks to name now, the rank for which the job has waited long enough)."""
        if self._last_look is not None and now - self._last_look > _LARGEST_GAP_S:
            self._since.clear()
        self._last_look = now
        stopped = [rank for rank, state in states.items() if state == "T"]
        self._since = {rank: self._since.get(rank, now) for rank in stopped}
        self._named &= set(stopped)
        to_name = [
            rank for rank in stopped if now - self._since[rank] >= self.named_after_s and rank not in self._named
        ]
        self._named.update(to_name)
        too_long = [rank for rank in stopped if now - self._since[rank] >= self.ended_after_s]
        return to_name, too_long[0] if too_long else None
