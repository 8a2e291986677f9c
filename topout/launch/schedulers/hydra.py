"""Hydra, the launcher of MPICH and Intel MPI, and MVAPICH's mpirun_rsh. Seen with MPICH 4.0.2, the others not run here.

Ranks know their numbers; the job's name and mpiexec's host stand on the command line of the proxy above them
(`hydra_pmi_proxy --control-port n1:39925`). In a container that hides it, a scheduler's job number has to do, or
TOPOUT_HEAD. PMI_RANK alone does not mean Hydra: Slurm, Flux and PALS set it as well.
"""

from __future__ import annotations

import os

from topout.launch.allocation import Allocation
from topout.launch.variables import parents, read_task
from topout.schema.world import Rank, World

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

TITLE = "MPICH"

TASK = {
    "rank": "PMI_RANK",
    "world_size": "PMI_SIZE",
    "local_rank": "MPI_LOCALRANKID",
    "local_size": "MPI_LOCALNRANKS",
}
TASK_OF_MVAPICH = {
    "rank": "MV2_COMM_WORLD_RANK",
    "world_size": "MV2_COMM_WORLD_SIZE",
    "local_rank": "MV2_COMM_WORLD_LOCAL_RANK",
    "local_size": "MV2_COMM_WORLD_LOCAL_SIZE",
}


def detect(environ: Mapping[str, str]) -> Allocation | None:
    is_hydra = TASK["local_rank"] in environ
    task = read_task(environ, TASK if is_hydra else TASK_OF_MVAPICH)
    if task is None:
        return None
    name, head = _name_and_head(environ, parents())
    return Allocation(
        scheduler="hydra",
        # nameless: one job of this user and size at a time
        job_id=f"hydra-{name or f'{os.getuid()}-{task.world_size}'}",
        num_tasks=task.world_size,
        task=task,
        head=head,
    )


def _name_and_head(environ: Mapping[str, str], commands: Iterable[Sequence[str]]) -> tuple[str | None, str | None]:
    """What tells this job from others, and mpiexec's host. A shell or two may stand between the proxy and us."""
    name, head = (
        environ.get("I_MPI_HYDRA_UUID") or environ.get("MPISPAWN_MPIRUN_ID"),
        environ.get("MPISPAWN_MPIRUN_HOST"),
    )
    for words in commands:
        options = dict(zip(words, [*words[1:], ""], strict=True))
        if place := options.get("--control-port"):
            return name or place, place.rpartition(":")[0]
        # Intel's proxies form a tree; only those of its first level talk to mpiexec itself
        if options.get("--tree-level") == "1":
            return name, options.get("--upstream-host")
    return name, head


def rank_variables(rank: Rank, world: World) -> dict[str, str]:
    """Nothing: PMI_RANK and PMI_SIZE are how MPI finds its place."""
    return {}
