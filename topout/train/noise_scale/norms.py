"""Squared norms of gradients as tensors of one number: nothing here waits for a device.

Not for clipping: `torch.nn.utils.clip_grad_norm_` needs the norm at once.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


def square(gradient: Any, num_ranks: int) -> Tensor:
    """This rank's part of a squared norm that `num_ranks` add up; what n of them hold counts 1/n on each."""
    local, copies = _local(gradient.detach()), copies_of(gradient, num_ranks)
    if local.is_sparse:
        local = local.coalesce().values()  # indices may repeat, and squares of parts are not the square of the sum
    if local.device.type == "cpu" and local.dtype in (torch.float32, torch.float64):
        flat = _flat(local)
        if flat is not None:
            return torch.dot(flat, flat) / copies  # a little faster than the norm, and more exact
    wide = torch.float64 if local.dtype in (torch.float64, torch.complex128) else torch.float32
    if local.is_complex():
        local = torch.view_as_real(local.resolve_conj())
    return torch.linalg.vector_norm(local, dtype=wide).square() / copies


def total(squares: Iterable[Tensor], device: torch.device) -> Tensor:
    """Their sum in float64 where the device has it; zero of none."""
    found = [value.to(device) for value in squares]
    dtype = torch.float32 if device.type == "mps" else torch.float64
    if not found:
        return torch.zeros((), dtype=dtype, device=device)
    return torch.stack([value.to(dtype) for value in found]).sum()


def _flat(tensor: Tensor) -> Tensor | None:
    """Its elements in the order they lie in memory, where that needs no copy."""
    if tensor.is_contiguous():
        return tensor.view(-1)
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        return tensor.permute(0, 2, 3, 1).reshape(-1)
    return None


def copies_of(gradient: Any, num_ranks: int) -> float:
    """How many of `num_ranks` hold the same part: all, unless it is a DTensor, which is split over some of them."""
    copies = float(num_ranks)
    for dimension, placement in enumerate(getattr(gradient, "placements", ())):
        # a shard of a shard does not say yes to is_shard(); parts of a sum are whole when their squares are taken
        if not (placement.is_replicate() or placement.is_partial()):
            copies /= gradient.device_mesh.size(dimension)
    return copies


def _local(tensor: Any) -> Tensor:
    """Of a DTensor what this rank holds."""
    placements = getattr(tensor, "placements", None)
    if placements is None:
        return tensor
    if any(placement.is_partial() for placement in placements):
        # parts of a sum: their squares say nothing before they are added up
        tensor = tensor.redistribute(placements=[_whole(placement) for placement in placements])
    return tensor.to_local()


def _whole(placement: Any) -> Any:
    from torch.distributed.tensor import Replicate

    return Replicate() if placement.is_partial() else placement
