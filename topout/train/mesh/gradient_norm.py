"""The norm of the whole model's gradient, wherever its pieces are, and gradients clipped by it.

Every rank adds up the squares of what it holds, each divided by the number of ranks that hold the same, so one sum over
all ranks counts every element once. Not for other norms than the Euclidean.
"""

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from topout.train.mesh.spec import MeshSpec
from topout.train.place import Place


def total_norm(parameters: Iterable[Any], spec: MeshSpec, place: Place) -> torch.Tensor:
    """Equal on all ranks, which call it together; a tensor on the device, so that nothing waits."""
    total = torch.zeros((), dtype=torch.float32, device=place.device)
    for parameter in parameters:
        if parameter.grad is not None:
            gradient = settled(parameter)
            total += local_part(gradient).float().square().sum() / _copies(gradient, spec)
    if place.world_size > 1:
        dist.all_reduce(total, group=place.group)
    return total.sqrt()


def clip(parameters: Iterable[Any], norm: torch.Tensor, most: float) -> None:
    """As torch.nn.utils.clip_grad_norm_ does."""
    factor = (most / (norm + 1e-6)).clamp(max=1.0)
    with torch.no_grad():
        for parameter in parameters:
            if parameter.grad is not None:
                local = local_part(parameter.grad)
                local.mul_(factor.to(local.dtype))


def settled(parameter: Any) -> Any:
    """The gradient, laid out as its parameter is: a sum that is still to be made has no norm."""
    gradient = parameter.grad
    if isinstance(gradient, DTensor) and any(placement.is_partial() for placement in gradient.placements):
        parameter.grad = gradient.redistribute(placements=parameter.placements)
    return parameter.grad


def local_part(tensor: Any) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _copies(gradient: Any, spec: MeshSpec) -> int:
    """How many ranks of the stage hold the same part of it."""
    copies = spec.dp * spec.fsdp * spec.tp
    if isinstance(gradient, DTensor):
        for placement, size in zip(gradient.placements, gradient.device_mesh.shape, strict=True):
            # a shard of a shard does not say yes to is_shard()
            if not placement.is_replicate():
                copies //= size
    return copies
