"""What is known of one rank at one moment, from its status page and from the kernel; it travels to the head as JSON.

Made where the rank runs, once a second; ages in it are of that moment. The receiver says how long ago it heard.
"""

from __future__ import annotations

from topout.record.page_snapshot import Snapshot
from topout.schema.light_dataclass import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One look at one rank."""

    rank: int
    host: str
    pid: int | None
    process_state: str | None = None
    """The kernel's letter: R runs, S sleeps, D held by the kernel, T stopped; None when it cannot be read."""
    page: Snapshot | None = None
    """None: the rank has not started recording, or was not asked to."""
    has_ended: bool = False
    """The script's last line has run, or the process is gone."""
    heard_age_s: float = 0.0
    """How long ago the rank's host last said something."""

    @property
    def is_over(self) -> bool:
        return self.has_ended or (self.page is not None and self.page.phase == "ended")

    def to_wire(self) -> dict[str, Any]:
        return {
            "rank": self.rank,
            "host": self.host,
            "pid": self.pid,
            "state": self.process_state,
            "page": self.page.to_wire() if self.page is not None else None,
            "ended": self.has_ended,
        }

    @classmethod
    def from_wire(cls, content: dict[str, Any], heard_age_s: float = 0.0) -> Observation:
        """Raises TypeError, ValueError or KeyError on content of the wrong shape."""
        page = content.get("page")
        return cls(
            rank=int(content["rank"]),
            host=str(content["host"]),
            pid=content.get("pid"),
            process_state=content.get("state"),
            page=Snapshot.from_wire(page) if page is not None else None,
            has_ended=bool(content.get("ended")),
            heard_age_s=heard_age_s,
        )
