"""The environment a rank starts in: what torch scripts expect, and what the recorder needs (docs/recording.md).

Whatever the user set about threads and torch's recorders stands. OMP_PROC_BIND and OMP_PLACES are left alone: with them
libgomp narrows the whole process to one core, and forked loader workers inherit that (pytorch#91989, #101850).
"""

from __future__ import annotations

from topout.host.nics import nic_variables
from topout.launch.detect import scheduler_plugin
from topout.launch.framework_env import framework_defaults, framework_variables
from topout.schema.light_json import dumps
from topout.schema.spec import RunSpec
from topout.schema.world import Rank, World

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike

FLIGHT_RECORDER_ROWS = 20_000


def rank_environment(
    rank: Rank,
    world: World,
    spec: RunSpec,
    status_fd: int,
    *,
    run: str | PathLike[str] | None,
    inherited: Mapping[str, str],
    restart: int = 0,
    scheduler: str | None = None,
) -> dict[str, str]:
    """`scheduler`: whose own variables must tell this rank's place, since it started launchers and not ranks."""
    environment = dict(inherited)
    environment.update(
        TORCHELASTIC_RESTART_COUNT=str(restart),
        TORCHELASTIC_MAX_RESTARTS=str(spec.restarts),
        PYTHONUNBUFFERED="1",
        TOPOUT_STATUS_FD=str(status_fd),
        TOPOUT_RECORD=recorder_orders(spec, has_folder=run is not None),
    )
    if not _stands_for_python(world, spec, scheduler):
        environment.update(_place(rank, world), TORCHELASTIC_RUN_ID=str(run).rpartition("/")[2] if run else "topout")
        environment.update(framework_variables(rank, world))
    if scheduler is not None:
        environment.update(scheduler_plugin(scheduler).rank_variables(rank, world))
    # set by torchrun for its own store, which this job does not have
    environment.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    environment.pop("TOPOUT_RUN", None)
    environment.pop("TOPOUT_PACKS", None)
    if spec.packs:
        environment["TOPOUT_PACKS"] = dumps(spec.packs)
    environment.pop("TOPOUT_DDP", None)
    if spec.ddp:
        environment["TOPOUT_DDP"] = "1"
        if inherited.get("PYTHONHASHSEED", "random") == "random":
            # words numbered in the order of a set would have other numbers on each rank
            environment["PYTHONHASHSEED"] = "0"
    if run is not None:
        environment["TOPOUT_RUN"] = str(run)
    if "OMP_NUM_THREADS" not in inherited or _is_of_pbs(inherited):
        environment["OMP_NUM_THREADS"] = str(rank.num_threads)
    for name, value in _defaults(rank, world).items():
        environment.setdefault(name, value)
    if spec.record:
        environment.setdefault("TORCH_FR_BUFFER_SIZE", str(FLIGHT_RECORDER_ROWS))
        environment.setdefault("TORCH_NCCL_ENABLE_TIMING", "1")
    return environment


def _is_of_pbs(inherited: Mapping[str, str]) -> bool:
    """PBS sets both to one number, the cores of the host's whole share; each rank would start so many threads."""
    return "PBS_JOBID" in inherited and inherited.get("NCPUS") == inherited["OMP_NUM_THREADS"]


def _stands_for_python(world: World, spec: RunSpec, scheduler: str | None) -> bool:
    """A rank that nobody asked to be one of several: scripts take `RANK` for it, and make a process group of one."""
    return world.size == 1 and spec.num_ranks is None and spec.per_node is None and scheduler is None


def _place(rank: Rank, world: World) -> dict[str, str]:
    """As torchrun tells it."""
    local_world_size = sum(other.node_rank == rank.node_rank for other in world.ranks)
    return {
        "RANK": str(rank.rank),
        "WORLD_SIZE": str(world.size),
        "LOCAL_RANK": str(rank.local_rank),
        "LOCAL_WORLD_SIZE": str(local_world_size),
        "GROUP_RANK": str(rank.node_rank),
        "GROUP_WORLD_SIZE": str(len(world.hosts)),
        "ROLE_RANK": str(rank.rank),
        "ROLE_WORLD_SIZE": str(world.size),
        "MASTER_ADDR": world.master_address,
        "MASTER_PORT": str(world.master_port),
    }


def _defaults(rank: Rank, world: World) -> dict[str, str]:
    """What a user may have set otherwise, and then knows better."""
    if len(world.hosts) == 1:
        return framework_defaults(rank, world)
    host = world.hosts[rank.node_rank]
    own = nic_variables(rank.nic, host.interface, host.nics, rail=rank.rail)
    return framework_defaults(rank, world) | own


def recorder_orders(spec: RunSpec, *, has_folder: bool) -> str:
    return dumps({
        "record": spec.record and has_folder,
        "steps": spec.steps,
        "data_share": spec.data_share,
        "batch": spec.batch,
        "onednn_backward": spec.onednn_backward,
        "keep_memory": spec.keep_memory,
        "profile": spec.profile,
        "filter": list(spec.filter) or None,
    })  # fmt: skip
