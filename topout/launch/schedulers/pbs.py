"""PBS Professional, OpenPBS and Torque, with HPE's PALS as the launcher of ranks. By the manuals; not run here.

Hosts stand in the file PBS_NODEFILE, once for every rank that was asked for (`mpiprocs`; with Torque's `ppn`, for every
core, which says nothing about ranks). OpenPBS writes the file on all hosts, other versions on the first alone; so ranks
that mpirun started go by its own word, and so do PALS's in a container, which hides the file. There is no warning
before the end: SIGTERM comes `kill_delay` (10 s) before SIGKILL.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from topout.launch.allocation import Allocation
from topout.launch.job_request import JobRequest, hours_minutes_seconds, in_directive, refuse
from topout.launch.node_list import read_host_file
from topout.launch.variables import at_place, contradiction, is_this_host, read_task, with_private_variables
from topout.schema.world import Rank, World

TITLE = "PBS"
WARNING_SIGNAL = "SIGTERM"

TASK = {
    "rank": "PALS_RANKID",
    "world_size": "PMI_SIZE",
    "local_rank": "PALS_LOCAL_RANKID",
    "local_size": "PALS_LOCAL_SIZE",
    "node_rank": "PALS_NODEID",
}
_UNBOUND = (
    "PALS_CPU_BIND=none",
    "OMPI_MCA_hwloc_base_binding_policy=none",
    "PRTE_MCA_hwloc_default_binding_policy=none",
    "I_MPI_PIN=off",
)
"""Of PALS, Open MPI 4, Open MPI 5 and Intel MPI; MPICH binds nothing unless it is asked to."""


def detect(environ: Mapping[str, str]) -> Allocation | None:
    if "PBS_JOBID" not in environ:
        return None
    task = read_task(environ, TASK)
    slots = _slots(environ, is_task=task is not None)
    if task is not None and task.world_size == 1:
        task = None
    is_told = task is None and not _is_torque(environ) and any(number > 1 for number in slots.values())
    hosts = tuple(slots)
    return Allocation(
        scheduler="pbs",
        job_id=job_id(environ) + (f".{environ['PALS_APID']}" if task is not None and "PALS_APID" in environ else ""),
        hosts=hosts,
        num_tasks=task.world_size if task is not None else sum(slots.values()) if is_told else None,
        tasks_per_host=tuple(slots.values()) if is_told else None,
        task=task,
        head=hosts[0] if hosts and task is not None else None,
    )


def job_id(environ: Mapping[str, str]) -> str:
    """`1234.server`; of an array `1234[5].server`."""
    return environ.get("PBS_JOBID", "")


def job_hosts(environ: Mapping[str, str]) -> tuple[str, ...]:
    """None: not every host may have the file."""
    return ()


def _slots(environ: Mapping[str, str], *, is_task: bool) -> dict[str, int]:
    """Host -> ranks there; empty for a task that cannot read the file, and needs it only to find the first host."""
    path = environ.get("PBS_NODEFILE")
    if is_task and not (path and os.access(path, os.R_OK)):
        return {}
    if not path:
        raise contradiction(
            "PBS_JOBID is set, PBS_NODEFILE is not.", why="nothing names the job's hosts", names=["PBS_JOBID"]
        )
    return read_host_file(path, source="PBS_NODEFILE")


def _is_torque(environ: Mapping[str, str]) -> bool:
    return "TORQUE" in environ.get("PBS_VERSION", "").upper() or "PBS_NUM_PPN" in environ


def start_commands(
    allocation: Allocation, command: Sequence[str], *, num_hosts: int, variables: Mapping[str, str] | None = None
) -> list[list[str]]:
    """One command a host; on the one we are on none is needed. They pass on neither variables nor the folder."""
    starter = ["pbsdsh", "-h"] if _is_torque(os.environ) else ["pbs_tmrsh"]
    commands = []
    for place, host in enumerate(allocation.hosts[:num_hosts]):
        words = at_place(place, num_hosts, command)
        if not is_this_host(host):
            words = [*starter, host, *with_private_variables(os.environ, variables or {}, words)]
        commands.append(words)
    return commands


def start_environment(environ: Mapping[str, str]) -> dict[str, str]:
    return dict(environ)


def rank_variables(rank: Rank, world: World) -> dict[str, str]:
    return {}


def directives(request: JobRequest) -> list[str]:
    refuse(TITLE, request, ["qos", "switches"], do='give it as one of the site\'s lines: "#PBS -l …"')
    chunk = {
        # else a chunk has one core, however many ranks
        "ncpus": request.cpus_per_node or request.tasks_per_node,
        "mpiprocs": request.tasks_per_node,
        # else OMP_NUM_THREADS is all cores of the chunk in each of its ranks
        "ompthreads": request.cpus_per_task,
        "ngpus": request.gpus_per_node,
        # PBS writes gigabytes as gb
        "mem": None if request.memory is None else re.sub(r"([kmgt])b?$", r"\1b", request.memory.lower()),
    }
    select = "".join(f":{name}={value}" for name, value in chunk.items() if value is not None)
    lines = [
        f"-N {request.name}",
        f"-l select={request.nodes}{select}",
        f"-l place=scatter{':excl' if request.wants_whole_nodes else ''}",
        f"-l walltime={hours_minutes_seconds(request.time_s)}",
        f"-A {request.account}" if request.account else None,
        f"-q {request.partition}" if request.partition else None,
        "-j oe",
        f"-o {in_directive(request.output)}",
        f"-r {'y' if request.is_requeued else 'n'}",
    ]
    return [*(f"#PBS {line}" for line in lines if line is not None), *request.extra]


def submit_command(script: Path) -> list[str]:
    return ["qsub", str(script)]


def read_job_id(output: str) -> str | None:
    """`1234.server`"""
    found = re.search(r"^(\d+(\[\d*\])?\.\S+)\s*$", output, re.MULTILINE)
    return found[1] if found else None


def task_prefix(request: JobRequest) -> list[str]:
    """Any site's mpiexec: how many on a node and that none is bound is said in variables, which others pass over.

    Open MPI, MPICH and Intel MPI read `mpiprocs` in the host file; their words for it differ.
    """
    tasks = request.tasks_per_node or 1
    variables = [f"PALS_PPN={tasks}", *_UNBOUND]
    return ["env", *variables, "mpiexec", "-n", str(request.nodes * tasks)]
