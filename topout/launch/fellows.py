"""What the supervisor of one host's ranks needs of the launchers on the job's other hosts.

Only the form, loaded by type checkers alone: `head.Head` has it where this launcher leads, `following.FollowingFellows`
where it follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from topout.host.light_selector import Selector
from topout.launch.first_failure import RankEnd
from topout.launch.outcome import Cause, Orders

if TYPE_CHECKING:
    from topout.launch.supervise import Supervisor


class Fellows(Protocol):
    """The launchers of the job's other hosts."""

    @property
    def is_busy(self) -> bool:
        """Ranks elsewhere have not ended yet, and this launcher waits for them."""

    def register(self, selector: Selector, supervisor: Supervisor) -> None: ...

    def rank_ended(self, end: RankEnd) -> None: ...

    def warned(self, number: int) -> None: ...

    def job_ends(self, cause: Cause, orders: Orders, number: int | None, rank: int | None) -> None: ...

    def hurry(self) -> None: ...

    def paused(self, is_paused: bool) -> None: ...

    def tick(self, now: float) -> None: ...

    def ends(self) -> Sequence[RankEnd]:
        """Of ranks elsewhere."""
