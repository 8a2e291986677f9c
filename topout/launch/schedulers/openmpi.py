"""Open MPI's mpirun, and PRRTE's. Seen on 4.1.4, version 5 by its manual.

mpirun tells every rank its numbers and where mpirun itself runs, not where rank 0 does; so the first rank on mpirun's
host leads, unless a scheduler names the hosts. Not for ranks that srun started with PMIx: Slurm tells more about them.
"""

import re
from collections.abc import Mapping

from topout.launch.allocation import Allocation
from topout.launch.variables import contradiction, read_task
from topout.schema.world import Rank, World

TITLE = "Open MPI"

TASK = {
    "rank": "OMPI_COMM_WORLD_RANK",
    "world_size": "OMPI_COMM_WORLD_SIZE",
    "local_rank": "OMPI_COMM_WORLD_LOCAL_RANK",
    "local_size": "OMPI_COMM_WORLD_LOCAL_SIZE",
}
_PLACES = re.compile(r"tcp6?://([^;]+):\d+")
_PRRTE = re.compile(r"(?:prterun|prte|mpirun|mpiexec)-(.+)-\d+@\d+")


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
        job_id=f"openmpi-{number}",
        num_tasks=task.world_size,
        task=task,
        head=_head(environ),
    )


def _head(environ: Mapping[str, str]) -> str | None:
    """`773390336.0;tcp://10.0.0.1,192.168.0.1:48621;tcp6://[fd00::2]:52637`: all addresses of mpirun's host.

    From version 5 on the job's name has the host's in it: `prterun-n1-4242@1`.
    """
    places = _PLACES.findall(environ.get("OMPI_MCA_orte_hnp_uri", ""))
    addresses = [address.strip("[]") for place in places for address in place.split(",")]
    if addresses:
        return ",".join(addresses)
    named = _PRRTE.fullmatch(environ.get("PMIX_NAMESPACE", ""))
    return named[1] if named else None


def rank_variables(rank: Rank, world: World) -> dict[str, str]:
    return {}
