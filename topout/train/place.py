"""This process among the ranks of its job, as every part of training needs to know it."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from topout.host.open_files import allow_open_files
from topout.record import gloo_threads


@dataclass(frozen=True, kw_only=True)
class Place:
    """`group` is None for a world of one rank, which needs no process group at all."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    device: torch.device
    group: Any = None

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def side_group(self) -> Any:
        """A Gloo group of all ranks, for work that must not meet the gradients' collectives; all ranks ask together."""
        if self.world_size == 1:
            return None
        # a connection to every other rank
        allow_open_files(2 * self.world_size)
        return dist.new_group(backend="gloo")


def alone(device: str = "cpu") -> Place:
    return Place(device=torch.device(device))


def joined(device: torch.device, *, local_rank: int, local_world_size: int) -> Place:
    """The place in torch's default group, which somebody has initialised."""
    gloo_threads.install(dist.distributed_c10d)
    gloo_threads.give_way()
    return Place(
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
        local_rank=local_rank,
        local_world_size=local_world_size,
        device=device,
        group=dist.group.WORLD,
    )
