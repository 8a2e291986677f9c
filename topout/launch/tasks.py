"""A task that a scheduler or mpirun started, one for every rank: it leads the job or follows whoever does.

Not for launchers that topout starts itself; see `starters`.
"""

from __future__ import annotations

import os

from topout.host.topology import read_host
from topout.launch.allocation import Allocation, Task
from topout.launch.becoming import BEFORE_RANKS, Ahead
from topout.launch.leading import LOOPBACK, find_lead, head_addresses, hint_of_head, own_address
from topout.launch.member import Member
from topout.launch.rendezvous import at_data_address, check_interface, connect, job_ports, job_token, listen
from topout.launch.signals import LauncherSignals
from topout.schema.light_dataclass import replace
from topout.schema.spec import RunSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from topout.launch.company import Company


def follow_or_lead(
    spec: RunSpec, allocation: Allocation, task: Task, signals: LauncherSignals, say: Callable[[str], None]
) -> Company | int:
    """A company when this task leads; else the job's exit code, after this task has followed to the end."""
    token = job_token(allocation.job_id, os.environ)
    lead = find_lead(allocation, task)
    check_interface(spec, is_on_one_host=lead.is_on_one_host)
    if not lead.is_own:
        from topout.launch.agent import join

        # before connecting: all tasks start together, so there is time until the head listens
        own_host = read_host()
        ports, timeout_s = job_ports(allocation.job_id), spec.start_timeout_s
        addresses = head_addresses(lead, allocation, spec.interface)
        check, meanwhile = signals.raise_if_asked, Ahead(*BEFORE_RANKS).load_one
        hint = hint_of_head(allocation)
        wire = connect(addresses, ports, token, timeout_s=timeout_s, hint=hint, meanwhile=meanwhile, check=check)
        return join(
            wire, own_host, token, number=task.rank, is_task=True, interface=spec.interface, signals=signals, own=spec
        )  # fmt: skip
    own = own_address(lead, allocation, spec.interface)
    return _lead(spec, allocation, task, own, token=token, signals=signals, say=say)


def _lead(
    spec: RunSpec,
    allocation: Allocation,
    task: Task,
    own: str,
    *,
    token: str,
    signals: LauncherSignals,
    say: Callable[[str], None],
) -> Company:
    """`own` is where the others look for this task."""
    listener = listen(own, job_ports(allocation.job_id))
    from topout.launch.gathering import Gathering

    host = replace(read_host(), address=own)
    if own != LOOPBACK:
        host = at_data_address(host, own, spec.interface)
    local = Member(number=task.rank, host=host, granted=tuple(sorted(os.sched_getaffinity(0))), is_task=True)
    with Gathering(listener, token, local) as gathering:
        links = gathering.await_all(
            task.world_size,
            timeout_s=spec.start_timeout_s,
            signals=signals,
            check=lambda: None,
            missing=lambda arrived: _tasks_missing(arrived, task.world_size, allocation),
            meanwhile=Ahead("launch.company", "launch.head", *BEFORE_RANKS, "launch.rounds").load_one,
        )
    # loaded by then, where the others took as long
    from topout.launch.company import Company
    from topout.launch.head import Head

    return Company(local, allocation, Head(links, local, token, say))


def _tasks_missing(arrived: set[int], world_size: int, allocation: Allocation) -> str:
    missing = [rank for rank in range(world_size) if rank not in arrived]
    text = f"tasks {', '.join(map(str, missing[:8]))}{', …' if len(missing) > 8 else ''}"
    return f"{text} of hosts {', '.join(allocation.hosts[:8])}" if allocation.hosts else text
