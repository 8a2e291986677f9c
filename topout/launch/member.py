"""One launcher of a job, as it introduces itself to the one that leads."""

from __future__ import annotations

from topout.schema.light_dataclass import dataclass
from topout.schema.world import Host


@dataclass(frozen=True, kw_only=True)
class Member:
    """One launcher of the job."""

    number: int
    """Its place in the order of hosts, or its task's rank."""
    host: Host
    granted: tuple[int, ...] = ()
    """Cores it may use."""
    is_task: bool = False
    """Stands for one rank, not for its host."""
