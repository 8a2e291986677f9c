"""All launchers of a job: this one alone, the tasks a scheduler started, or one a host that this one has started.

Whichever it is, the job sees members and one way to start them. Not for running anything; `job` does, round by round.
"""

from __future__ import annotations

import os

from topout.host.light_socket import Socket
from topout.host.topology import read_host
from topout.launch.allocation import Allocation
from topout.launch.member import Member
from topout.launch.ports import free_ports, hold_port
from topout.launch.roster import Roster
from topout.schema.light_dataclass import replace
from topout.schema.world import World

TYPE_CHECKING = False
if TYPE_CHECKING:
    from topout.launch.head import Head
    from topout.launch.signals import LauncherSignals
    from topout.launch.starters import Starters


class Company:
    """Who runs this job. Close it with the job's exit code."""

    def __init__(
        self,
        local: Member | None,
        allocation: Allocation | None,
        head: Head | None = None,
        starters: Starters | None = None,
    ) -> None:
        self.local = local
        self.allocation = allocation
        self.head = head
        self._starters = starters
        self._port_holder: Socket | None = None
        self._pid = os.getpid()

    @property
    def scheduler(self) -> str | None:
        """Whose variables describe launchers instead of ranks."""
        is_of_tasks = self.local is not None and self.local.is_task
        return None if self.allocation is None or is_of_tasks else self.allocation.scheduler

    def members(self) -> list[Member]:
        if self.head is not None:
            return self.head.members()
        return [self.local] if self.local is not None else []

    def prepare(self, roster: Roster, signals: LauncherSignals) -> World:
        """The world with addresses and ports; several hosts have then reached the meeting point."""
        if self.head is not None:
            return self.head.prepare(roster, signals)
        address = roster.world.hosts[0].address
        self._port_holder = hold_port(address)
        ports = free_ports(address, roster.world.size)
        ranks = tuple(replace(rank, port=port) for rank, port in zip(roster.world.ranks, ports, strict=True))
        port = int(self._port_holder.getsockname()[1])
        return replace(roster.world, ranks=ranks, master_address=address, master_port=port)

    def end_round(self) -> None:
        if os.getpid() != self._pid:
            # a child on its way to become a rank: all of this is its parent's
            return
        if self._port_holder is not None:
            self._port_holder.close()
            self._port_holder = None
        if self.head is not None:
            self.head.release()

    def close(self, exit_code: int) -> None:
        if os.getpid() != self._pid:
            return
        self.end_round()
        if self.head is not None:
            self.head.dismiss(exit_code)
        if self._starters is not None:
            self._starters.close()


def alone(allocation: Allocation | None) -> Company:
    granted = tuple(sorted(os.sched_getaffinity(0)))
    return Company(Member(number=0, host=read_host(), granted=granted), allocation)
