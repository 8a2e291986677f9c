"""Grid Engine (Son of, Univa, Altair): parallel environments. Seen on 8.1.9.

Hosts stand in the file PE_HOSTFILE, on the job's first host alone, with their slots; a slot is a core on most sites, so
it says nothing about ranks. Grid Engine starts no ranks by itself: topout does, through `qrsh -inherit`, which needs a
parallel environment with control_slaves TRUE.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from topout.launch.allocation import Allocation
from topout.launch.job_request import JobRequest, hours_minutes_seconds, in_directive, refuse
from topout.launch.node_list import read_host_table
from topout.launch.variables import at_place, is_this_host
from topout.schema.errors import TopoutError
from topout.schema.world import Rank, World

TITLE = "Grid Engine"
WARNING_SIGNAL = "SIGUSR2"
"""Before the kill, with -notify; SIGUSR1 comes before a job is suspended."""


def detect(environ: Mapping[str, str]) -> Allocation | None:
    if "JOB_ID" not in environ or not ("SGE_TASK_ID" in environ or "PE_HOSTFILE" in environ):
        return None
    return Allocation(scheduler="sge", job_id=job_id(environ), hosts=_hosts(environ))


def job_id(environ: Mapping[str, str]) -> str:
    """Only the jobs of an array have a task's number."""
    index = environ.get("SGE_TASK_ID", "undefined")
    return environ.get("JOB_ID", "") + ("" if index in ("", "undefined") else f".{index}")


def job_hosts(environ: Mapping[str, str]) -> tuple[str, ...]:
    """None: only the first host has the file."""
    return ()


def _hosts(environ: Mapping[str, str]) -> tuple[str, ...]:
    """`n1 2 all.q@n1 UNDEFINED`, a line for each queue of a host; without a parallel environment it is this host."""
    path = environ.get("PE_HOSTFILE")
    if not path:
        return ()
    return tuple(dict.fromkeys(words[0] for words in read_host_table(path, source="PE_HOSTFILE")))


def start_commands(
    allocation: Allocation, command: Sequence[str], *, num_hosts: int, variables: Mapping[str, str] | None = None
) -> list[list[str]]:
    """One command a host; on the one we are on none is needed. Without -noshell a shell would read the words again."""
    commands = []
    for place, host in enumerate(allocation.hosts[:num_hosts]):
        words = at_place(place, num_hosts, command)
        commands.append(
            words if is_this_host(host) else ["qrsh", "-inherit", "-nostdin", "-noshell", "-V", host, *words]
        )
    return commands


def start_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """-V takes all, and functions of the shell (`BASH_FUNC_module%%`) break the shell at the other end."""
    return {name: value for name, value in environ.items() if name.isidentifier()}


def rank_variables(rank: Rank, world: World) -> dict[str, str]:
    return {}


def directives(request: JobRequest) -> list[str]:
    lines_of_site = 'give it as one of the site\'s lines: "#$ -l …"'
    refuse(TITLE, request, ["qos", "switches", "gpus_per_node"], do=lines_of_site)
    refuse(TITLE, request, ["memory"], do='say it of one slot, as a line of the site: "#$ -l h_vmem=4G"')
    has_environment = any(re.search(r"-pe\s", line) for line in request.extra)
    if not has_environment and (request.nodes > 1 or (request.cpus_per_node or request.tasks_per_node or 1) > 1):
        raise TopoutError(
            f"Grid Engine needs a parallel environment for {request.nodes} nodes of several slots.",
            why="its name and what a slot is differ from site to site; qconf -spl lists the names",
            do='give it as one of the site\'s lines: "#$ -pe mpi 64"',
        )
    lines = [
        f"-N {request.name}",
        f"-l h_rt={hours_minutes_seconds(request.time_s)}",
        f"-P {request.account}" if request.account else None,
        f"-q {request.partition}" if request.partition else None,
        "-j y",
        f"-o {in_directive(request.output)}",
        f"-wd {in_directive(request.working_folder)}",
        "-notify" if request.warn_s is not None else None,
        f"-r {'y' if request.is_requeued else 'n'}",
    ]
    return [*(f"#$ {line}" for line in lines if line is not None), *request.extra]


def submit_command(script: Path) -> list[str]:
    return ["qsub", "-terse", str(script)]


def read_job_id(output: str) -> str | None:
    """`1234`, of an array `1234.1-10:1`."""
    found = re.search(r"^(\d+)(\.\S+)?\s*$", output, re.MULTILINE)
    return found[1] if found else None


def task_prefix(request: JobRequest) -> list[str]:
    """Open MPI and MPICH read PE_HOSTFILE themselves."""
    return ["mpirun", "-np", str(request.nodes * (request.tasks_per_node or 1))]
