"""DDP's mean in fewer steps: a group of gradients is divided at once, and not gradient by gradient.

DDP multiplies each gradient by 1/ranks as it copies it into its group, which takes a small one longer than the copy:
1 ms a step with 200 of them. Its own hook for averaging copies, and divides the whole group. Among 2, 4, 8, … ranks
both give the same bits; among others DDP's own way stays.
"""

from typing import Any

import torch.distributed as dist

from topout.schema.errors import TopoutError


def is_exact(world_size: int) -> bool:
    return world_size & (world_size - 1) == 0


def divide_whole(ddp: Any) -> Any:
    """Once for a reducer that has no communication hook; `remove()` what it returns together with the reducer."""
    ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    return watch_divisor(ddp)


def watch_divisor(ddp: Any) -> Any:
    """For whatever divides by the number of ranks that began; `remove()` ends it."""
    return ddp.register_forward_pre_hook(_check_divisor)


def _check_divisor(ddp: Any, _: Any) -> None:
    """Before every forward: the one choice of a script for which DDP's hooks have no ear."""
    if ddp._join_config.enable and not ddp._divide_by_initial_world_size:
        raise TopoutError(
            "model.join(divide_by_initial_world_size=False) came after gradients had been averaged without it.",
            why="How they are grouped and divided is chosen in the first steps, and was chosen for a fixed divisor.",
            do='wrap with buckets="default"',
        )
