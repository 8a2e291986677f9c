"""Slurm: jobs, steps of `srun`, interactive shells, arrays, heterogeneous jobs. Seen on 22.05.

A batch script has SLURM_PROCID=0 as well, so only a numeric step makes a task. A step of one task starts ranks itself:
nothing tells `srun -n1` apart from a job that was never told a number of tasks. SLURM_LAUNCH_NODE_IPADDR is where srun
runs, often a login node: never the head.
"""

from __future__ import annotations

from topout.launch.allocation import Allocation, Task
from topout.launch.node_list import compress_counts, expand_counts, expand_hosts, read_host_file
from topout.launch.variables import contradiction, has_terminal, read_number, read_task
from topout.schema.errors import TopoutError
from topout.schema.light_dataclass import replace
from topout.schema.world import Rank, World

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from topout.launch.job_request import JobRequest

TITLE = "Slurm"
WARNING_SIGNAL = "SIGUSR1"

TASK = {
    "rank": "SLURM_PROCID",
    "world_size": "SLURM_STEP_NUM_TASKS",
    "local_rank": "SLURM_LOCALID",
    "node_rank": "SLURM_NODEID",
}
_FIRST_SPECIAL_STEP = 0xFFFFFFF0
"""Above are the steps of a batch script, of `salloc`'s shell (4294967290) and of `ssh` into a job."""

_SHAPES_A_STEP = (
    "SLURM_CPU_BIND", "SLURM_CPUS_PER_GPU", "SLURM_CPUS_PER_TASK", "SLURM_DISTRIBUTION", "SLURM_EXACT",
    "SLURM_EXCLUSIVE", "SLURM_EXPORT_ENV", "SLURM_GPU_BIND", "SLURM_GPUS", "SLURM_GPUS_PER_NODE",
    "SLURM_GPUS_PER_SOCKET", "SLURM_GPUS_PER_TASK", "SLURM_GRES", "SLURM_HINT", "SLURM_HOSTFILE", "SLURM_MEM_BIND",
    "SLURM_MPI_TYPE", "SLURM_MULTI_PROG", "SLURM_NNODES", "SLURM_NPROCS", "SLURM_NTASKS", "SLURM_OVERCOMMIT",
    "SLURM_RELATIVE", "SLURM_STEP_GRES", "SLURM_THREADS_PER_CORE", "SLURM_TRES_BIND", "SLURM_TRES_PER_TASK",
    "SLURM_WHOLE", "SRUN_CPUS_PER_TASK",
)  # fmt: skip
_SHAPE_A_STEP_TOO = ("SLURM_CPU_BIND_", "SLURM_MEM_BIND_", "SLURM_NTASKS_PER_", "SLURM_PTY_")
"""Variables that srun takes as options, also from the step or job around it; each would shape the agents' step."""


def detect(environ: Mapping[str, str]) -> Allocation | None:
    if "SLURM_JOB_ID" not in environ:
        return None
    step = environ.get("SLURM_STEP_ID", "")
    if step.isdecimal() and int(step) < _FIRST_SPECIAL_STEP:
        return _step(environ, step)
    return _job(environ)


def job_id(environ: Mapping[str, str]) -> str:
    """Every task of an array has a number of its own; a heterogeneous job has that of its first part."""
    return environ.get("SLURM_JOB_ID", "")


def job_hosts(environ: Mapping[str, str]) -> tuple[str, ...]:
    return _hosts(environ, "SLURM_JOB_NODELIST")


def _job(environ: Mapping[str, str]) -> Allocation:
    num_parts = read_number(environ, "SLURM_HET_SIZE") or 1
    if num_parts > 1:
        raise TopoutError(
            f"This is a heterogeneous job of {num_parts} parts, and its script runs in the first one.",
            why="its variables tell the hosts of the first part only, so that the others would stand idle",
            do=f"srun --het-group=0-{num_parts - 1} topout run …, once for every rank",
        )
    hosts = _hosts(environ, "SLURM_JOB_NODELIST")
    _check_number_of_hosts(environ, "SLURM_JOB_NUM_NODES", hosts)
    # without SLURM_NTASKS nobody asked for tasks, and SLURM_TASKS_PER_NODE counts processors
    num_tasks = read_number(environ, "SLURM_NTASKS")
    counts = _counts(environ, "SLURM_TASKS_PER_NODE")
    is_told = num_tasks is not None and counts is not None and len(counts) == len(hosts) and sum(counts) == num_tasks
    return Allocation(
        scheduler="slurm",
        job_id=job_id(environ),
        hosts=hosts,
        num_tasks=num_tasks,
        tasks_per_host=counts if is_told else None,
        gpus_per_host=_gpus_per_host(environ, len(hosts)),
    )


def _step(environ: Mapping[str, str], step: str) -> Allocation:
    hosts = _hosts(environ, "SLURM_STEP_NODELIST")
    _check_number_of_hosts(environ, "SLURM_STEP_NUM_NODES", hosts)
    counts = _counts(environ, "SLURM_STEP_TASKS_PER_NODE")
    task = read_task(environ, TASK)
    if task is None:
        raise contradiction(
            "SLURM_STEP_ID is set, SLURM_PROCID is not.", why="a step has tasks", names=["SLURM_STEP_ID"]
        )
    if counts is not None and (len(counts) != len(hosts) or sum(counts) != task.world_size):
        raise contradiction(
            f"SLURM_STEP_TASKS_PER_NODE={environ['SLURM_STEP_TASKS_PER_NODE']} contradicts SLURM_STEP_NUM_TASKS="
            f"{task.world_size} on {len(hosts)} nodes.",
            why="they are of different steps",
            names=["SLURM_STEP_TASKS_PER_NODE"],
        )
    if counts is not None and task.node_rank is not None and task.node_rank < len(counts):
        task = replace(task, local_size=counts[task.node_rank])
    granted = Allocation(
        scheduler="slurm",
        job_id=f"{job_id(environ)}.{step}",
        hosts=hosts,
        num_tasks=task.world_size if task.world_size > 1 else None,
        tasks_per_host=counts if task.world_size > 1 else None,
        gpus_per_host=_gpus_per_host(environ, len(hosts)),
    )
    # `srun --pty bash` gives its terminal to task 0, and the shells of the others have ended; tasks of a further srun
    # inherit SLURM_PTY_PORT but no terminal
    if task.world_size == 1 or ("SLURM_PTY_PORT" in environ and has_terminal()):
        return granted
    return _in_order_of_ranks(environ, replace(granted, task=task, head=hosts[0]), task)


def _in_order_of_ranks(environ: Mapping[str, str], granted: Allocation, task: Task) -> Allocation:
    """With the distribution `arbitrary` ranks follow a file, while node lists stay sorted."""
    if environ.get("SLURM_DISTRIBUTION") != "arbitrary":
        return granted
    path = environ.get("SLURM_HOSTFILE")
    if path is None:
        return replace(granted, hosts=(), tasks_per_host=None, head=None)
    wanted = [host for host in read_host_file(path, source="SLURM_HOSTFILE") if host in granted.hosts]
    order = [*wanted, *(host for host in granted.hosts if host not in wanted)]
    counts = granted.tasks_per_host
    own = granted.hosts[task.node_rank] if task.node_rank is not None else None
    return replace(
        granted,
        hosts=tuple(order),
        head=order[0],
        tasks_per_host=tuple(counts[granted.hosts.index(host)] for host in order) if counts else None,
        task=replace(task, node_rank=order.index(own) if own else None),
    )


def _hosts(environ: Mapping[str, str], name: str) -> tuple[str, ...]:
    if not environ.get(name):
        raise contradiction(
            f"SLURM_JOB_ID is set, {name} is not.",
            why="a job has hosts; this looks like a part of a job's environment",
            names=["SLURM_JOB_ID"],
        )
    return expand_hosts(environ[name], source=name)


def _counts(environ: Mapping[str, str], name: str) -> tuple[int, ...] | None:
    return expand_counts(environ[name], source=name) if environ.get(name) else None


def _check_number_of_hosts(environ: Mapping[str, str], name: str, hosts: Sequence[str]) -> None:
    num_hosts = read_number(environ, name)
    if num_hosts is not None and num_hosts != len(hosts):
        raise contradiction(
            f"{name}={num_hosts}, and the node list has {len(hosts)} hosts.",
            why="the job changed its size after this shell started, or one of them was set by hand",
            names=[name],
        )


def _gpus_per_host(environ: Mapping[str, str], num_hosts: int) -> int | None:
    """None when it was not said, or differs between the hosts."""
    total = read_number(environ, "SLURM_GPUS") if environ.get("SLURM_GPUS", "").isdecimal() else None
    here = read_number(environ, "SLURM_GPUS_ON_NODE") or _last_number(environ.get("SLURM_GPUS_PER_NODE"))
    if here is None and total is not None and total % num_hosts == 0:
        return total // num_hosts
    return None if here is None or (total is not None and here * num_hosts != total) else here


def _last_number(text: str | None) -> int | None:
    """`4`, `a100:4`."""
    number = (text or "").rpartition(":")[2]
    return int(number) if number.isdecimal() else None


def start_commands(
    allocation: Allocation, command: Sequence[str], *, num_hosts: int, variables: Mapping[str, str] | None = None
) -> list[list[str]]:
    """One step with one task a host, which overlaps the others and gets all that the job has there.

    A node that fails is the head's affair. Without --cpus-per-task a step gets all processors of the job. GPUs must be
    named: of a job that asked for them per task or in total, a step with fewer tasks gets fewer.
    """
    gpus = [f"--gpus-per-node={allocation.gpus_per_host}"] if allocation.gpus_per_host else []
    return [
        [
            "srun", f"--nodes={num_hosts}", f"--ntasks={num_hosts}", "--ntasks-per-node=1",
            f"--nodelist={','.join(allocation.hosts[:num_hosts])}", "--overlap", "--cpu-bind=none", *gpus, "--mpi=none",
            "--export=ALL", "--input=none", "--kill-on-bad-exit=0", "--wait=0", "--no-kill", *command,
        ]
    ]  # fmt: skip


def start_environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environ.items()
        if name not in _SHAPES_A_STEP and not name.startswith(_SHAPE_A_STEP_TOO)
    }


def rank_variables(rank: Rank, world: World) -> dict[str, str]:
    counts = [0] * len(world.hosts)
    for other in world.ranks:
        counts[other.node_rank] += 1
    beside = [other.rank for other in world.ranks if other.node_rank == rank.node_rank]
    num_tasks, tasks_per_node = str(world.size), compress_counts(counts)
    return {
        "SLURM_PROCID": str(rank.rank),
        "SLURM_LOCALID": str(rank.local_rank),
        "SLURM_NODEID": str(rank.node_rank),
        "SLURM_GTIDS": ",".join(map(str, beside)),
        "SLURM_NTASKS": num_tasks,
        "SLURM_NPROCS": num_tasks,
        "SLURM_STEP_NUM_TASKS": num_tasks,
        "SLURM_NTASKS_PER_NODE": str(max(counts)),
        "SLURM_TASKS_PER_NODE": tasks_per_node,
        "SLURM_STEP_TASKS_PER_NODE": tasks_per_node,
        "SLURM_NNODES": str(len(world.hosts)),
        "SLURM_STEP_NUM_NODES": str(len(world.hosts)),
        "SLURM_STEP_NODELIST": ",".join(host.name for host in world.hosts),
        "SLURM_CPUS_PER_TASK": str(len(rank.cores) or rank.num_threads),
    }


def directives(request: JobRequest) -> list[str]:
    # a task of a job asks for none
    from topout.launch.job_request import hours_minutes_seconds, in_directive

    values = {
        "job-name": request.name,
        "nodes": request.nodes,
        "ntasks-per-node": request.tasks_per_node,
        "cpus-per-task": request.cpus_per_task,
        "gpus-per-node": request.gpus_per_node,
        "mem": request.memory,
        "time": hours_minutes_seconds(request.time_s),
        "account": request.account,
        "partition": request.partition,
        "qos": request.qos,
        "switches": request.switches,
        # % stands for a number in names of files
        "output": in_directive(str(request.output).replace("%", "%%")),
        "chdir": in_directive(request.working_folder),
        # B: to the script's shell alone; the agents hear of it from the head
        "signal": None if request.warn_s is None else f"B:{WARNING_SIGNAL[3:]}@{request.warn_s}",
        # a job that starts again must not wipe what it said before
        "open-mode": "append" if request.is_requeued else None,
    }
    lines = [f"#SBATCH --{name}={value}" for name, value in values.items() if value is not None]
    lines.append(f"#SBATCH --{'' if request.is_requeued else 'no-'}requeue")
    if request.outlives_nodes:
        lines.append("#SBATCH --no-kill")
    return [*lines, *(["#SBATCH --exclusive"] if request.wants_whole_nodes else []), *request.extra]


def submit_command(script: Path) -> list[str]:
    return ["sbatch", "--parsable", str(script)]


def read_job_id(output: str) -> str | None:
    """`1234`, or `1234;cluster`; the last line, for sites print greetings."""
    words = (output.strip().splitlines() or [""])[-1].partition(";")[0].split()
    return words[-1] if words and words[-1].isdecimal() else None


def task_prefix(request: JobRequest) -> list[str]:
    """Since 22.05 srun does not take --cpus-per-task over from the job."""
    num_tasks = request.nodes * (request.tasks_per_node or 1)
    cpus = [f"--cpus-per-task={request.cpus_per_task}"] if request.cpus_per_task else []
    tasks = [f"--ntasks={num_tasks}", f"--ntasks-per-node={request.tasks_per_node or 1}"]
    survival = ["--no-kill"] if request.outlives_nodes else []
    return ["srun", *tasks, *cpus, "--cpu-bind=none", "--kill-on-bad-exit=0", "--wait=0", *survival]
