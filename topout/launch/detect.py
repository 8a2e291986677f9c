"""Which job this process belongs to: the resource manager that granted hosts, and the launcher that started this task.

    detect_allocation()   # None on a laptop

Both may speak at once: mpirun inside a batch script of Slurm leaves its own variables beside Slurm's, which then
describe the batch script, or the step that mpirun made for its daemons. The innermost launcher knows the rank, the
manager the hosts. Variables and files only, so that a container needs no command (Flux, which tells nothing otherwise,
is asked). Not for a scheduler to submit to; `submit.scheduler` finds that.

TOPOUT_SCHEDULER names one plug-in to believe, also one from outside; `local` believes none.
"""

from __future__ import annotations

import os
import sys

from topout.launch.allocation import Allocation, Task
from topout.launch.variables import PLACE_VARIABLE, contradiction
from topout.schema.errors import ExitCode, TopoutError
from topout.schema.light_dataclass import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

PACKAGE = "topout.launch.schedulers"
SCHEDULER_VARIABLE = "TOPOUT_SCHEDULER"
PART_VARIABLE = "TOPOUT_PART_OF_JOB"
"""Set by whoever means a world of one rank within a larger job."""

LAUNCHERS = {
    "openmpi": ("OMPI_COMM_WORLD_RANK",),
    "hydra": ("MPI_LOCALRANKID", "MV2_COMM_WORLD_RANK"),
}
MANAGERS = {
    "flux": ("FLUX_TASK_RANK", "FLUX_ENCLOSING_ID", "FLUX_URI"),
    "slurm": ("SLURM_JOB_ID",),
    "lsf": ("LSB_JOBID",),
    "pbs": ("PBS_JOBID",),
    "sge": ("PE_HOSTFILE", "SGE_TASK_ID"),
}
"""A plug-in without any of its variables is not even imported; the first that knows a job is asked."""


def detect_allocation(environ: Mapping[str, str] = os.environ) -> Allocation | None:
    if PLACE_VARIABLE in environ:
        return _started_here(environ[PLACE_VARIABLE])
    wanted = environ.get(SCHEDULER_VARIABLE)
    if wanted:
        return None if wanted == "local" else _believe(wanted, environ)
    manager = _manager(environ)
    for name, variables in LAUNCHERS.items():
        if any(variable in environ for variable in variables):
            inner: Allocation | None = scheduler_plugin(name).detect(environ)
            if inner is not None:
                return _inside(inner, manager, environ)
    found: Allocation | None = None if manager is None else _asked(manager, manager.detect(environ), environ)
    if found is None or found.task is None:
        _check_unknown_launcher(environ)
    return found


def check_world(allocation: Allocation | None, world_size: int) -> None:
    """Raises when a job of several tasks would train as a world of one: each would train alone, and cost as much."""
    if allocation is None or world_size != 1:
        return
    if allocation.task is None and PART_VARIABLE in os.environ:
        # a scaling study, which starts one job after another on part of what it was given
        return
    num_tasks = allocation.task.world_size if allocation.task is not None else allocation.num_tasks
    if num_tasks is not None and num_tasks > 1:
        raise TopoutError(
            f"This job has {num_tasks} tasks, and the world would be 1 rank.",
            why=f"{allocation.scheduler} was asked for {num_tasks} tasks; alone, they would train {num_tasks} models "
            "instead of one",
            do=f"topout run -n {num_tasks} …, or ask the scheduler for one task",
        )


def _started_here(place: str) -> Allocation:
    """One of the launchers that a head started, one a host."""
    number, _, num_hosts = place.partition("/")
    if not (number.isdecimal() and num_hosts.isdecimal() and int(number) < int(num_hosts)):
        raise contradiction(
            f"{PLACE_VARIABLE}={place} is not a place such as 0/2.", why="topout sets it itself", names=[PLACE_VARIABLE]
        )
    task = Task(rank=int(number), world_size=int(num_hosts), local_rank=0, local_size=1, node_rank=int(number))
    return Allocation(scheduler="local", job_id=place, num_tasks=int(num_hosts), task=task)


def _believe(name: str, environ: Mapping[str, str]) -> Allocation:
    # listing entry points costs a tenth of a launch, so only who asks for one pays
    from topout.schema.plugin import load_plugin

    plugin = load_plugin(PACKAGE, name)
    found = _asked(plugin, plugin.detect(environ), environ)
    if found is None:
        variables = {**LAUNCHERS, **MANAGERS}.get(name, ())
        raise TopoutError(
            f"{SCHEDULER_VARIABLE}={name}, and this process does not run under {plugin.TITLE}.",
            why=f"none of {', '.join(variables)} is set" if variables else "its plug-in finds nothing",
            do=f"unset {SCHEDULER_VARIABLE}, or start the job with {plugin.TITLE}",
            exit_code=ExitCode.ENVIRONMENT,
        )
    return found


def _inside(inner: Allocation, manager: ModuleType | None, environ: Mapping[str, str]) -> Allocation:
    """A rank of mpirun inside a manager's job: its step's variables are of mpirun's daemons, the job's hold."""
    if manager is None:
        return inner
    hosts: tuple[str, ...] = manager.job_hosts(environ)
    # over ssh Open MPI brings its own variables alone: the ranks there know of no manager, and must be of the same job
    is_known_to_all = inner.scheduler == "openmpi"
    return replace(
        inner,
        job_id=inner.job_id if is_known_to_all else f"{manager.job_id(environ)}/{inner.job_id}",
        hosts=hosts,
        head=hosts[0] if hosts else inner.head,
    )


def _asked(plugin: ModuleType, found: Allocation | None, environ: Mapping[str, str]) -> Allocation | None:
    """Completed by the scheduler's own command, where it leaves no hosts in variables."""
    if found is None or found.hosts or not hasattr(plugin, "ask"):
        return found
    if _is_followers(environ) or (found.task is not None and "TOPOUT_HEAD" in environ):
        # who knows the head needs no hosts; a script, which does, may have named the head for its containers
        return found
    asked: Allocation = plugin.ask(found, environ)
    return asked


def _is_followers(environ: Mapping[str, str]) -> bool:
    """Whether a head started this process, as `starters` does: it tells its port, where users name a host alone.

    Five digits, as every port above 9999 has: a group of an IPv6 address has four at most.
    """
    port = environ.get("TOPOUT_HEAD", "").rpartition(":")[2]
    return "TOPOUT_TOKEN" in environ and ":" in environ["TOPOUT_HEAD"] and len(port) == 5 and port.isdecimal()


def _check_unknown_launcher(environ: Mapping[str, str]) -> None:
    """A rank above 0 is one of several, whoever counts; on its own it would train the same model once more."""
    for name in ("PMIX_RANK", "PMI_RANK"):
        if environ.get(name, "0").strip("0").isdecimal():
            raise TopoutError(
                f"This process is rank {environ[name]} of a launcher that topout does not know.",
                why=f"{name} is set, without the variables of Open MPI, MPICH, Slurm, LSF, PALS or Flux",
                do="start the ranks with one of those; TOPOUT_SCHEDULER=local runs one job for each of them",
                exit_code=ExitCode.ENVIRONMENT,
            )


def _manager(environ: Mapping[str, str]) -> ModuleType | None:
    for name, variables in MANAGERS.items():
        if any(variable in environ for variable in variables) and (plugin := scheduler_plugin(name)).job_id(environ):
            return plugin
    return None


def scheduler_plugin(name: str) -> ModuleType:
    """The plug-in of an allocation, topout's own or one from outside."""
    try:
        # as `importlib.import_module`, which loads `warnings` first
        __import__(f"{PACKAGE}.{name}")
        return sys.modules[f"{PACKAGE}.{name}"]
    except ModuleNotFoundError as error:
        if error.name != f"{PACKAGE}.{name}":
            raise
        # looked up last: listing entry points costs a tenth of a launch
        from topout.schema.plugin import load_plugin

        return load_plugin(PACKAGE, name)
