"""Flux: tasks of `flux run`, and scripts of `flux batch` or `flux alloc`. By flux-environment(7); not run here.

Flux tells hosts to whoever asks a command, in no variable; so `ask` runs one, here alone. A batch script runs in an
instance of its own, which unsets the variables of all others. FLUX_URI of the system's own instance is no allocation.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from topout.launch.allocation import Allocation
from topout.launch.job_request import JobRequest, in_directive, refuse
from topout.launch.node_list import expand_hosts
from topout.launch.variables import read_number, read_task
from topout.schema.errors import ExitCode, TopoutError
from topout.schema.world import Rank, World

TITLE = "Flux"
WARNING_SIGNAL = "SIGUSR1"

TASK = {"rank": "FLUX_TASK_RANK", "world_size": "FLUX_JOB_SIZE", "local_rank": "FLUX_TASK_LOCAL_ID"}
_SYSTEM = "local:///run/flux"
_ANSWER_WITHIN_S = 20


def detect(environ: Mapping[str, str]) -> Allocation | None:
    if not job_id(environ):
        return None
    task = read_task(environ, TASK)
    num_hosts = read_number(environ, "FLUX_JOB_NNODES")
    if task is not None and num_hosts == 1:
        task = replace(task, local_size=task.world_size, node_rank=0)
    if task is not None and num_hosts == task.world_size:
        task = replace(task, local_size=1, node_rank=task.rank)
    return Allocation(
        scheduler="flux",
        job_id=job_id(environ),
        num_tasks=None if task is None or task.world_size == 1 else task.world_size,
        task=None if task is not None and task.world_size == 1 else task,
    )


def job_id(environ: Mapping[str, str]) -> str:
    """Numbers count from the start of an instance, so that only the whole path is unique."""
    whole = environ.get("FLUX_JOB_ID_PATH")
    parts = [environ.get("FLUX_ENCLOSING_ID"), environ.get("FLUX_JOB_ID")]
    place = environ.get("FLUX_URI", "")
    return whole or "/".join(part for part in parts if part) or ("" if place.startswith(_SYSTEM) else place)


def job_hosts(environ: Mapping[str, str]) -> tuple[str, ...]:
    return ()


def ask(allocation: Allocation, environ: Mapping[str, str]) -> Allocation:
    """The allocation with its hosts; without them a script would use one host of many, and nobody would notice."""
    job = environ.get("FLUX_JOB_ID")
    command = ["flux", "jobs", "--no-header", "--format={nodelist}", job] if job else ["flux", "getattr", "hostlist"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_ANSWER_WITHIN_S, check=True
        )
        hosts = expand_hosts(done.stdout.strip(), source=" ".join(command[:2]))
    except (OSError, subprocess.SubprocessError) as error:
        if allocation.task is not None or read_number(environ, "FLUX_JOB_NNODES") == 1:
            # a task, of a job of one node also the only one, is where it must be; in a container nobody can be asked
            return allocation
        said = getattr(error, "stderr", None) or error
        raise TopoutError(
            "Flux does not tell the hosts of this job.",
            why=f"{' '.join(command)}: {str(said).strip()[:200]}",
            do="start one topout for every rank: flux run -N2 -n8 topout run …; TOPOUT_SCHEDULER=local uses this host "
            "alone",
            exit_code=ExitCode.ENVIRONMENT,
        ) from error
    return replace(allocation, hosts=hosts, head=hosts[0] if allocation.task is not None else None)


def start_commands(
    allocation: Allocation, command: Sequence[str], *, num_hosts: int, variables: Mapping[str, str] | None = None
) -> list[list[str]]:
    """One task on each host, which gets all of it; flux passes the environment on."""
    wanted = [f"--requires=host:{','.join(allocation.hosts[:num_hosts])}"] if allocation.hosts else []
    unbound = ["--setopt=cpu-affinity=off", "--setopt=gpu-affinity=off", "--setopt=exit-timeout=none"]
    return [["flux", "run", f"--nodes={num_hosts}", "--exclusive", "--tasks-per-node=1", *wanted, *unbound, *command]]


def start_environment(environ: Mapping[str, str]) -> dict[str, str]:
    return dict(environ)


def rank_variables(rank: Rank, world: World) -> dict[str, str]:
    """flux run counts the agents; scripts that read its variables want the ranks."""
    if TASK["rank"] not in os.environ:
        return {}
    values = dict(zip(TASK.values(), map(str, (rank.rank, world.size, rank.local_rank)), strict=True))
    return {**values, "FLUX_JOB_NNODES": str(len(world.hosts))}


def directives(request: JobRequest) -> list[str]:
    do = 'give it as one of the site\'s lines: "#FLUX: --requires=…"'
    refuse(TITLE, request, ["qos", "memory", "switches"], do=do)
    # a slot a node, so that each node gives the same
    is_whole = request.cpus_per_node is None
    values = {
        "job-name": request.name,
        "nodes": request.nodes,
        "nslots": None if is_whole else request.nodes,
        "cores-per-slot": request.cpus_per_node,
        "gpus-per-slot": None if is_whole else request.gpus_per_node,
        "time-limit": f"{request.time_s}s",
        "bank": request.account,
        "queue": request.partition,
        "output": in_directive(request.output),
        "cwd": in_directive(request.working_folder),
        "signal": None if request.warn_s is None else f"{WARNING_SIGNAL}@{request.warn_s}s",
    }
    lines = [f"#FLUX: --{name}={value}" for name, value in values.items() if value is not None]
    return [*lines, *(["#FLUX: --exclusive"] if is_whole else []), *request.extra]


def submit_command(script: Path) -> list[str]:
    return ["flux", "batch", str(script)]


def read_job_id(output: str) -> str | None:
    """`ƒM7Zq9AKHno`, or with f where the terminal has no ƒ."""
    words = output.split()
    return words[-1] if words and words[-1][0] in "ƒf0123456789" else None


def task_prefix(request: JobRequest) -> list[str]:
    tasks = request.tasks_per_node or 1
    unbound = ["--setopt=cpu-affinity=off", "--setopt=gpu-affinity=off"]
    return ["flux", "run", f"--nodes={request.nodes}", "--exclusive", f"--tasks-per-node={tasks}", *unbound]
