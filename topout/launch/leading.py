"""Who leads among tasks that a scheduler started, and at which addresses the others find it."""

from __future__ import annotations

import os

from topout.host.nics import inner_addresses
from topout.launch.allocation import Allocation, Task
from topout.launch.detect import LAUNCHERS
from topout.launch.rendezvous import HEAD_VARIABLE, is_own, resolve, route_address
from topout.launch.variables import is_this_host
from topout.schema.errors import ExitCode, TopoutError
from topout.schema.light_dataclass import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class Lead:
    """`addresses` are tried in order by those who do not lead."""

    addresses: tuple[str, ...]
    is_own: bool
    """Whether this task leads."""
    is_on_one_host: bool


def find_lead(allocation: Allocation, task: Task) -> Lead:
    is_on_one_host = task.local_size == task.world_size or len(allocation.hosts) == 1
    head = os.environ.get(HEAD_VARIABLE) or allocation.head or (allocation.hosts[0] if allocation.hosts else None)
    if is_on_one_host:
        return Lead(addresses=(LOOPBACK,), is_own=task.rank == 0, is_on_one_host=True)
    if head is None:
        raise TopoutError(
            f"Task {task.rank} of {task.world_size} does not know where the first task runs.",
            why=f"{allocation.scheduler} tells tasks neither the job's hosts nor its first one",
            do=f"export {HEAD_VARIABLE}=HOST, the host of rank 0, before the tasks are started",
            exit_code=ExitCode.ENVIRONMENT,
        )
    addresses = _beyond_this_host([address for name in head.split(",") for address in resolve(name)])
    return Lead(addresses=addresses, is_own=_leads(task, allocation, addresses), is_on_one_host=False)


def own_address(lead: Lead, allocation: Allocation, interface: str | None) -> str:
    """Where the others look for this task, which leads."""
    if lead.is_on_one_host:
        return LOOPBACK
    reachable = [address for address in lead.addresses if is_own(address) and not _is_loopback(address)]
    return reachable[0] if reachable else route_address(allocation.hosts, interface)


def head_addresses(lead: Lead, allocation: Allocation, interface: str | None) -> tuple[str, ...]:
    """Where a task that follows looks for the one that leads.

    Debian has a host's own name lead to 127.0.1.1. There the head does not listen, since no other host would find it.
    """
    is_elsewhere = bool(allocation.hosts) and HEAD_VARIABLE not in os.environ and not is_this_host(allocation.hosts[0])
    if lead.is_on_one_host or is_elsewhere or not all(map(_is_loopback, lead.addresses)):
        return lead.addresses
    return (own_address(lead, allocation, interface),)


def hint_of_head(allocation: Allocation) -> str:
    """Where mpirun was given some of a manager's hosts, rank 0 may not be on the first, and nothing tells where."""
    is_told = HEAD_VARIABLE in os.environ
    if is_told or allocation.scheduler not in LAUNCHERS or not allocation.hosts:
        return ""
    return (
        f"if rank 0 does not run on the job's first host ({allocation.hosts[0]}), as under mpirun --host, export "
        f"{HEAD_VARIABLE}=HOST of rank 0"
    )


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def _beyond_this_host(addresses: Sequence[str]) -> tuple[str, ...]:
    """Without docker0's, which mpirun counts among its own: every host with Docker has the same."""
    inner = inner_addresses()
    return tuple(address for address in addresses if address not in inner) or tuple(addresses)


def _leads(task: Task, allocation: Allocation, addresses: Sequence[str]) -> bool:
    if allocation.hosts or HEAD_VARIABLE in os.environ:
        return task.rank == 0
    # mpirun tells where it runs itself; the first task there leads
    return task.local_rank == 0 and any(map(is_own, addresses))
