"""The environment a rank starts in: what torch scripts expect, and what the recorder needs (docs/recording.md).

Whatever the user set about threads and torch's recorders stands. OMP_PROC_BIND and OMP_PLACES are left alone: with them
libgomp narrows the whole process to one core, and forked loader workers inherit that (pytorch#91989, #101850).
"""

import json
from collections.abc import Mapping
from pathlib import Path

from topout.schema.spec import RunSpec
from topout.schema.world import Rank, World

FLIGHT_RECORDER_ROWS = 20_000


def rank_environment(
    rank: Rank, world: World, spec: RunSpec, status_fd: int, *, run: Path | None, inherited: Mapping[str, str]
) -> dict[str, str]:
    local_world_size = sum(other.host == rank.host for other in world.ranks)
    environment = dict(inherited)
    environment.update(
        RANK=str(rank.rank),
        WORLD_SIZE=str(world.size),
        LOCAL_RANK=str(rank.local_rank),
        LOCAL_WORLD_SIZE=str(local_world_size),
        GROUP_RANK=str(rank.node_rank),
        GROUP_WORLD_SIZE=str(len(world.hosts)),
        ROLE_RANK=str(rank.rank),
        ROLE_WORLD_SIZE=str(world.size),
        MASTER_ADDR=world.master_address,
        MASTER_PORT=str(world.master_port),
        TORCHELASTIC_RUN_ID=run.name if run else "topout",
        TORCHELASTIC_RESTART_COUNT="0",
        TORCHELASTIC_MAX_RESTARTS="0",
        PYTHONUNBUFFERED="1",
        TOPOUT_STATUS_FD=str(status_fd),
        TOPOUT_RECORD=recorder_orders(spec, has_folder=run is not None),
    )
    # set by torchrun for its own store, which this job does not have
    environment.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    environment.pop("TOPOUT_RUN", None)
    if run is not None:
        environment["TOPOUT_RUN"] = str(run)
    environment.setdefault("OMP_NUM_THREADS", str(rank.num_threads))
    if spec.record:
        environment.setdefault("TORCH_FR_BUFFER_SIZE", str(FLIGHT_RECORDER_ROWS))
        environment.setdefault("TORCH_NCCL_ENABLE_TIMING", "1")
    return environment


def recorder_orders(spec: RunSpec, *, has_folder: bool) -> str:
    return json.dumps({
        "record": spec.record and has_folder,
        "steps": spec.steps,
        "data_share": spec.data_share,
        "profile": spec.profile,
        "filter": list(spec.filter) or None,
    })  # fmt: skip
