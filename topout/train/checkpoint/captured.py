"""Everything a rank would save at one step boundary, before a byte of it is copied.

    shared   the same tensor on all ranks, or a shard of it: parameters and what an optimizer keeps for them
    own      whatever may differ between ranks: buffers (BatchNorm's statistics under DDP do), other objects' tensors,
             and all of the state where ranks train apart (LocalSGD, DiLoCo)

A shared tensor is written once, by any rank that has it; an own one by every rank. After a change of the number of
ranks all of them take rank 0's own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.tensor import DTensor


def own_name(rank: int, name: str) -> str:
    return f"@{rank}/{name}"


@dataclass
class Captured:
    rank: int
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    """By the name in the file: own ones carry their rank."""
    trees: dict[str, Any] = field(default_factory=dict)
    """JSON by entry of the state."""
    trained: set[str] = field(default_factory=set)
    """Which tensors are parameters that need gradients."""

    def put(self, name: str, tensor: torch.Tensor, *, is_shared: bool) -> str:
        # a sharded tensor is never one rank's own
        name = name if is_shared or isinstance(tensor, DTensor) else own_name(self.rank, name)
        while name in self.tensors:  # keys with dots in them can make equal paths
            name += "~"
        self.tensors[name] = tensor
        return name

    def signature(self) -> tuple[Any, ...]:
        """Equal as long as every tensor keeps its name, size, type and shard: then a plan may be used again."""
        return tuple(
            (name, tensor.shape, tensor.dtype, tensor.placements if isinstance(tensor, DTensor) else None)
            for name, tensor in self.tensors.items()
        )


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class Source:
    """Tensors of a checkpoint while it is being loaded, as the entries of the state ask for them."""

    def __init__(self, sizes: Mapping[str, tuple[torch.Size, torch.dtype]]) -> None:
        self.sizes = sizes
        self.targets: dict[str, torch.Tensor] = {}

    def into(self, name: str, target: torch.Tensor) -> torch.Tensor:
        """Has `target` filled with a tensor of the checkpoint once all entries have asked."""
        self.targets[name] = target
        return target

    def fresh(self, name: str, like: torch.Tensor | None = None, device: torch.device | None = None) -> torch.Tensor:
        """Room for a tensor: on `device` or the CPU, or as `like` lies where that has the same size."""
        size, dtype = self.sizes[name]
        if like is not None and like.shape == size and size:
            return self.into(name, torch.empty_like(like, dtype=dtype, requires_grad=False))
        return self.into(name, torch.empty(size, dtype=dtype, device=device or "cpu"))
