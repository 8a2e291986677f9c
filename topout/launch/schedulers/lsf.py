"""LSF, with `jsrun` where the site has IBM's Job Step Manager. By the manual; not run here.

Hosts come from LSB_DJOB_HOSTFILE (a line a slot), else from LSB_MCPU_HOSTS (`hostA 2 hostB 4`) or LSB_HOSTS. A slot is
a core on most sites, so slots say nothing about ranks. Where there is jsrun, the job's script runs on a batch or launch
host that stands first in these lists, has one slot and none of the GPUs: it is dropped.
"""

import os
import re
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from topout.launch.allocation import Allocation
from topout.launch.job_request import JobRequest, hours_minutes_seconds, in_directive, refuse
from topout.launch.node_list import read_host_file
from topout.launch.variables import contradiction, read_task
from topout.schema.errors import TopoutError
from topout.schema.world import Rank, World

TITLE = "LSF"
WARNING_SIGNAL = "SIGUSR2"
"""At the time limit, and to every process of the job; so is the one of -wa, which would end the ranks."""

TASK = {
    "rank": "JSM_NAMESPACE_RANK",
    "world_size": "JSM_NAMESPACE_SIZE",
    "local_rank": "JSM_NAMESPACE_LOCAL_RANK",
    "local_size": "JSM_NAMESPACE_LOCAL_SIZE",
}
_NOT_FOR_RANKS = re.compile(r"(batch|login|launch)\d*(\..*)?", re.IGNORECASE)
_JSM = ("CSM_ALLOCATION_ID", "JSM_NAMESPACE_RANK")


def detect(environ: Mapping[str, str]) -> Allocation | None:
    if "LSB_JOBID" not in environ:
        return None
    hosts = job_hosts(environ)
    task = read_task(environ, TASK)
    if task is not None and task.world_size == 1:
        task = None
    # several jsruns may run in one job, each with a namespace of its own
    step = f".{environ['PMIX_NAMESPACE']}" if "JSM_NAMESPACE_RANK" in environ and "PMIX_NAMESPACE" in environ else ""
    return Allocation(
        scheduler="lsf",
        job_id=job_id(environ) + step,
        hosts=hosts,
        num_tasks=None if task is None else task.world_size,
        task=task,
        head=None if task is None else hosts[0],
    )


def job_id(environ: Mapping[str, str]) -> str:
    """An array's elements share a number; their index is 0 elsewhere."""
    index = environ.get("LSB_JOBINDEX", "0")
    return environ.get("LSB_JOBID", "") + ("" if index in ("", "0") else f"[{index}]")


def job_hosts(environ: Mapping[str, str]) -> tuple[str, ...]:
    slots = _slots(environ)
    hosts = [host for host in slots if not _NOT_FOR_RANKS.fullmatch(host)] or list(slots)
    has_jsm = any(name in environ for name in _JSM)
    if has_jsm and len(hosts) > 1 and slots[hosts[0]] == 1 and all(slots[host] > 1 for host in hosts[1:]):
        # on Sierra and Lassen the launch host is called like the others
        hosts = hosts[1:]
    return tuple(hosts)


def _slots(environ: Mapping[str, str]) -> dict[str, int]:
    path = environ.get("LSB_DJOB_HOSTFILE")
    words = environ.get("LSB_MCPU_HOSTS", "").split()
    # a container may not see the folder of the file; the variable says the same
    if path and (os.access(path, os.R_OK) or not words):
        return read_host_file(path, source="LSB_DJOB_HOSTFILE")
    if words:
        if len(words) % 2 or not all(word.isdecimal() for word in words[1::2]):
            raise contradiction(
                f"LSB_MCPU_HOSTS cannot be read: {' '.join(words)[:80]!r}.",
                why="it has to be pairs of a host and a number of slots",
                names=["LSB_MCPU_HOSTS"],
            )
        slots: dict[str, int] = {}
        for host, number in zip(words[::2], words[1::2], strict=True):
            slots[host] = slots.get(host, 0) + int(number)
        return slots
    if environ.get("LSB_HOSTS", "").split():
        return dict(Counter(environ["LSB_HOSTS"].split()))
    raise contradiction(
        "LSB_JOBID is set, and nothing names the job's hosts.",
        why="LSB_DJOB_HOSTFILE, LSB_MCPU_HOSTS and LSB_HOSTS are all empty",
        names=["LSB_JOBID"],
    )


def start_commands(
    allocation: Allocation, command: Sequence[str], *, num_hosts: int, variables: Mapping[str, str] | None = None
) -> list[list[str]]:
    """Both pass the environment on. jsrun chooses the hosts itself, and gives each set all that a host has."""
    if any(name in os.environ for name in _JSM) or shutil.which("blaunch") is None:
        sets = {"--nrs": num_hosts, "--rs_per_host": 1, "--tasks_per_rs": 1}
        all_of_a_host = ["--cpu_per_rs", "ALL_CPUS", "--gpu_per_rs", "ALL_GPUS", "--bind", "none"]
        return [["jsrun", *(str(word) for pair in sets.items() for word in pair), *all_of_a_host, *command]]
    return [["blaunch", "-no-shell", "-z", " ".join(allocation.hosts[:num_hosts]), *command]]


def start_environment(environ: Mapping[str, str]) -> dict[str, str]:
    return dict(environ)


def rank_variables(rank: Rank, world: World) -> dict[str, str]:
    """jsrun counts the agents; scripts that read its variables want the ranks."""
    if TASK["rank"] not in os.environ:
        return {}
    num_beside = sum(other.node_rank == rank.node_rank for other in world.ranks)
    values = (rank.rank, world.size, rank.local_rank, num_beside)
    return dict(zip(TASK.values(), map(str, values), strict=True))


def directives(request: JobRequest) -> list[str]:
    refuse(TITLE, request, ["qos", "switches"], do='give it as one of the site\'s lines: "#BSUB -R …"')
    tasks = request.tasks_per_node or 1
    time = hours_minutes_seconds(request.time_s + 59)[:-3]
    lines = [
        f"-J {request.name}",
        f"-n {request.nodes * tasks}",
        f'-R "span[ptile={tasks}]"',
        f'-R "affinity[core({request.cpus_per_task})]"' if request.cpus_per_task else None,
        f'-gpu "num={request.gpus_per_node}"' if request.gpus_per_node else None,
        f'-R "rusage[mem={request.memory}]"' if request.memory else None,
        f"-W {time}",
        f"-P {request.account}" if request.account else None,
        f"-q {request.partition}" if request.partition else None,
        f"-o {in_directive(request.output)}",
        f"-cwd {in_directive(request.working_folder)}",
        "-r" if request.is_requeued else "-rn",
        "-x" if request.wants_whole_nodes else None,
    ]
    return [*(f"#BSUB {line}" for line in lines if line is not None), *request.extra]


def submit_command(script: Path) -> list[str]:
    """bsub reads directives from its input, not from a file it is given."""
    return ["/bin/sh", "-c", 'exec bsub < "$0"', str(script)]


def read_job_id(output: str) -> str | None:
    """`Job <1234> is submitted to queue <normal>.`"""
    found = re.search(r"Job <(\d+)>", output)
    return found[1] if found else None


def task_prefix(request: JobRequest) -> list[str]:
    if shutil.which("jsrun") is None:
        raise TopoutError(
            "LSF alone does not start ranks.",
            why="jsrun is not on the PATH, and blaunch tells its tasks no rank",
            do="run without --container, so that topout starts the ranks itself",
        )
    tasks = request.tasks_per_node or 1
    cpus = ["--cpu_per_rs", str(request.cpus_per_node)] if request.cpus_per_node else ["--cpu_per_rs", "ALL_CPUS"]
    gpus = ["--gpu_per_rs", str(request.gpus_per_node)] if request.gpus_per_node else []
    sets = ["--nrs", str(request.nodes), "--rs_per_host", "1", "--tasks_per_rs", str(tasks)]
    return ["jsrun", *sets, *cpus, *gpus, "--bind", "none"]
