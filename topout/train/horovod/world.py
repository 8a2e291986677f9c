"""Who this process is: what `hvd.init`, `rank`, `size` and their relatives answer.

Not a launcher: places come from the environment that `topout run` (or torchrun) gives a rank.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from topout.schema.counted import counted
from topout.schema.errors import ExitCode, TopoutError
from topout.train.fusion.agreement import gather_numbers
from topout.train.joining import join
from topout.train.leaving import leave_at_exit

NOT_INITIALIZED = "Horovod has not been initialized; use hvd.init()."


class HorovodInternalError(RuntimeError):
    """A collective failed, most often because another rank is gone."""


@dataclass(frozen=True, kw_only=True)
class World:
    """All of it is known once at `init` and never changes."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    is_homogeneous: bool
    owns_group: bool
    gradient_group: Any
    """Apart from the script's own collectives: between those and the gradients' no order is given."""


_world: World | None = None


def current() -> World:
    if _world is None:
        raise ValueError(NOT_INITIALIZED)
    return _world


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Joins the job; a second call does nothing."""
    global _world
    if _world is not None:
        return
    if comm is not None:
        _check_all_ranks(comm)
    owns_group = not dist.is_initialized()
    if owns_group:
        _join_ranks()
        leave_at_exit()
    _world = _look_around(owns_group)
    from topout.train.horovod.process_sets import start_process_sets

    start_process_sets([] if process_sets in (None, "dynamic") else process_sets)
    if _world.rank == 0:
        text = f"topout: horovod.torch is served on torch.distributed ({dist.get_backend()}), {_world.size} ranks\n"
        sys.stderr.write(text)


def _check_all_ranks(comm: Any) -> None:
    """Horovod takes a communicator, or its ranks in their new order; none are all."""
    if not isinstance(comm, Sequence):
        raise TopoutError(
            "hvd.init got an MPI communicator.",
            why="topout serves Horovod on torch.distributed, which has none",
            do="call hvd.init() without it; process sets take lists of ranks",
        )
    size = dist.get_world_size() if dist.is_initialized() else int(os.environ.get("WORLD_SIZE", "1"))
    if comm and list(comm) != list(range(size)):
        raise TopoutError(
            f"hvd.init got comm={comm!r}, and the job has {counted(size, 'rank')}.",
            why="here hvd.init takes all ranks of the job, in their order",
            do=f"call hvd.init() and pass the list to hvd.add_process_set, or topout run -n {len(comm)} for them alone",
        )


def _join_ranks() -> None:
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        return
    try:
        join(_device())
    except (RuntimeError, ValueError) as error:
        raise TopoutError(
            "hvd.init could not join the other ranks.",
            why=str(error).splitlines()[0],
            do="start the script with topout run -n N SCRIPT, which sets up RANK, WORLD_SIZE and MASTER_ADDR",
            exit_code=ExitCode.ENVIRONMENT,
        ) from error


def _device() -> torch.device:
    """The GPU that a script will choose by hvd.local_rank()."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())


def _look_around(owns_group: bool) -> World:
    local_rank, local_size = (int(os.environ.get(name, default)) for name, default in
                              (("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1")))  # fmt: skip
    host = int(os.environ.get("GROUP_RANK", "0"))
    rows = gather_numbers([host, local_rank, local_size], dist.group.WORLD)
    # those with the same number on other hosts
    across = [row_host for row_host, row_local, _ in rows if row_local == local_rank]
    return World(
        rank=dist.get_rank(),
        size=dist.get_world_size(),
        local_rank=local_rank,
        local_size=local_size,
        cross_rank=sorted(across).index(host),
        cross_size=len(across),
        is_homogeneous=len({row_size for _, _, row_size in rows}) == 1,
        owns_group=owns_group,
        gradient_group=dist.new_group(),
    )


def shutdown() -> None:
    global _world
    if _world is not None and _world.owns_group and dist.is_initialized():
        dist.destroy_process_group()
    _world = None


def is_initialized() -> bool:
    return _world is not None


def rank() -> int:
    return current().rank


def size() -> int:
    return current().size


def local_rank() -> int:
    return current().local_rank


def local_size() -> int:
    return current().local_size


def cross_rank() -> int:
    return current().cross_rank


def cross_size() -> int:
    return current().cross_size


def is_homogeneous() -> bool:
    return current().is_homogeneous


def mpi_threads_supported() -> bool:
    current()
    return False


def mpi_enabled() -> bool:
    return False


def mpi_built() -> bool:
    return False


def gloo_enabled() -> bool:
    return bool(dist.is_gloo_available())


def gloo_built() -> bool:
    return bool(dist.is_gloo_available())


def nccl_built() -> int:
    """The version as one number, such as 22703, or 0."""
    if not (dist.is_nccl_available() and torch.cuda.is_available()):
        return 0
    major, minor, patch = torch.cuda.nccl.version()[:3]
    return int(major * 10_000 + minor * 100 + patch)


def ddl_built() -> bool:
    return False


def ccl_built() -> bool:
    return False


def cuda_built() -> bool:
    return torch.version.cuda is not None


def rocm_built() -> bool:
    return torch.version.hip is not None


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """No file of that kind is written: `topout run` records the same and more."""
    sys.stderr.write(f"topout: {file_path} is not written; the run's report has the timeline\n")


def stop_timeline() -> None:
    """There is none to stop."""
