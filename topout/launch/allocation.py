"""What a scheduler or an MPI launcher granted: which hosts, and which task of them this process is.

Read from variables and files alone, so that it works inside a container that has none of the scheduler's commands.
Not what a host looks like; `topology` reads that on the host itself.
"""

from __future__ import annotations

from topout.schema.light_dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class Task:
    """This process as one of those that srun, mpirun, jsrun or their like started, one for every rank."""

    rank: int
    world_size: int
    local_rank: int
    local_size: int | None = None
    """Tasks on this host; None when the launcher does not tell."""
    node_rank: int | None = None


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """One job, or one step of it."""

    scheduler: str
    """Name of the file in `schedulers/`."""
    job_id: str
    """Equal on all hosts of this job and step, different for any other; ports and tokens are made from it."""
    hosts: tuple[str, ...] = ()
    """Names in order of rank, each once, batch and login hosts dropped; empty when the launcher does not tell."""
    num_tasks: int | None = None
    """Ranks asked for in the whole job; None when it was not said."""
    tasks_per_host: tuple[int, ...] | None = None
    """In the order of `hosts`; None when it was not said."""
    gpus_per_host: int | None = None
    task: Task | None = None
    """None: this process was started once, and starts the ranks through the scheduler itself."""
    head: str | None = None
    """Name or address of the host where the task leads that the others report to; None: not told.

    That task is the one of rank 0 when `hosts` is known, else the first task on this host.
    """
