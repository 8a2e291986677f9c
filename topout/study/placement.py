"""On how many hosts a point of a scaling study runs: as few as hold its ranks evenly.

Inside an allocation a point with fewer ranks takes part of it. Ranks fill a host before the next one is taken, as a job
of that size would be laid out, so that two ranks on one host are not taken for two hosts. Outside of one, this host.
"""

import os
from collections.abc import Mapping

from topout.host.topology import read_host
from topout.launch.allocation import Allocation
from topout.launch.detect import detect_allocation
from topout.launch.roster import ranks_on
from topout.schema.errors import TopoutError
from topout.schema.spec import RunSpec


def nodes_for(count: int, per_node: int) -> int:
    """Hosts with the same number of ranks on each, no more than `per_node`."""
    return next(nodes for nodes in range(1, count + 1) if count % nodes == 0 and count // nodes <= per_node)


def current_allocation(environ: Mapping[str, str] = os.environ) -> Allocation | None:
    """What the job around this process has; None outside of one. One started for every rank is refused."""
    found = detect_allocation(environ)
    if found is not None and found.task is not None and found.task.world_size > 1:
        raise TopoutError(
            f"topout scale was started {found.task.world_size} times.",
            why="It starts the ranks of every point itself, so one process of it is enough.",
            do="start it once in the job, without srun or mpirun",
        )
    return found


def options_inside(allocation: Allocation | None, count: int, per_node: int | None) -> list[str]:
    """Of `topout run`, for so many ranks on part of an allocation; none on a single host."""
    if allocation is None or len(allocation.hosts) < 2:
        if per_node is not None and count > per_node:
            raise TopoutError(
                f"{count} ranks do not fit on this host.",
                why=f"--per-node {per_node} allows {per_node} on a host, and there is no job of several around this.",
                do=f"leave out --per-node or --ranks {count}, or --submit to the scheduler of a cluster",
            )
        if allocation is None:
            _check_host(count)
        return []
    most = per_node or max(allocation.tasks_per_host or (0,)) or allocation.gpus_per_host
    nodes = nodes_for(count, most) if most else min(count, len(allocation.hosts))
    if nodes > len(allocation.hosts):
        raise TopoutError(
            f"{count} ranks do not fit into this job.",
            why=f"With at most {most} on a host they need {nodes} hosts, and it has {len(allocation.hosts)}.",
            do=f"leave out --ranks {count}, give --per-node, or ask the scheduler for more hosts",
        )
    return ["--nodes", str(nodes)]


def _check_host(count: int) -> None:
    """What `topout run` would refuse, after the points before it had run."""
    try:
        ranks_on(RunSpec(num_ranks=count), [read_host()], None)
    except TopoutError as error:
        do = f"leave out --ranks {count}, or --submit to the scheduler of a cluster"
        raise TopoutError(error.problem, why=error.why, do=do) from error
