"""Open MPI's mpirun, and PRRTE's. Seen on 4.1.4, version 5 by its manual.

mpirun tells every rank its numbers and where mpirun itself runs, not where rank 0 does; so the first rank on mpirun's
host leads, unless a scheduler names the hosts. Not for ranks that srun started with PMIx: Slurm tells more about them.
"""

from __future__ import annotations

import os

from topout.launch.allocation import Allocation
from topout.launch.variables import contradiction, read_task
from topout.schema.world import Rank, World

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

TITLE = "Open MPI"

TASK = {
    "rank": "OMPI_COMM_WORLD_RANK",
    "world_size": "OMPI_COMM_WORLD_SIZE",
    "local_rank": "OMPI_COMM_WORLD_LOCAL_RANK",
    "local_size": "OMPI_COMM_WORLD_LOCAL_SIZE",
}
_PRRTE = ("prterun", "prte", "mpirun", "mpiexec")


def detect(environ: Mapping[str, str]) -> Allocation | None:
    task = read_task(environ, TASK)
    if task is None:
        return None
    number = environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid")
    if not number:
        raise contradiction(
            "OMPI_COMM_WORLD_RANK is set, and nothing names the job.",
            why="PMIX_NAMESPACE and OMPI_MCA_ess_base_jobid are both missing; two jobs could not be told apart",
            names=["OMPI_COMM_WORLD_RANK"],
        )
    return Allocation(
        scheduler="openmpi",
        job_id="-".join(["openmpi", number, *_port(environ)]),
        num_tasks=task.world_size,
        task=task,
        head=_head(environ),
    )


def _head(environ: Mapping[str, str]) -> str | None:
    """`773390336.0;tcp://10.0.0.1,192.168.0.1:48621;tcp6://[fd00::2]:52637`: all addresses of mpirun's host.

    From version 5 on the job's name has the host's in it: `prterun-n1-4242@1`.
    """
    addresses: list[str] = []
    for place in environ.get("OMPI_MCA_orte_hnp_uri", "").split(";"):
        protocol, _, rest = place.partition("://")
        listed, _, port = rest.rpartition(":")
        if protocol in ("tcp", "tcp6") and listed and port[:1].isdecimal():
            addresses += [address.strip("[]") for address in listed.split(",")]
    if addresses:
        return ",".join(addresses)
    program, _, rest = environ.get("PMIX_NAMESPACE", "").partition("-")
    host, _, numbers = rest.rpartition("-")
    is_named = program in _PRRTE and all(number.isdecimal() for number in numbers.partition("@")[::2])
    return host if is_named and host else None


def _port(environ: Mapping[str, str]) -> list[str]:
    """Where mpirun listens: the number that it gives its job is another's now and then."""
    text = environ.get("OMPI_MCA_orte_hnp_uri", "").partition("://")[2].partition(";")[0]
    port = text.rpartition(":")[2].strip('"')
    return [port] if port.isdecimal() else []


def rank_variables(rank: Rank, world: World) -> dict[str, str]:
    """mpirun counts launchers; scripts that read its variables want the ranks. MPI itself asks PMIx."""
    if TASK["rank"] not in os.environ:
        return {}
    num_beside = sum(other.node_rank == rank.node_rank for other in world.ranks)
    values = (rank.rank, world.size, rank.local_rank, num_beside)
    return dict(zip(TASK.values(), map(str, values), strict=True))
