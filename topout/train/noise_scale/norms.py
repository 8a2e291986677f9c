"""Squared norms of gradients as tensors of one number: nothing here waits for a device.

Not for clipping: `torch.nn.utils.clip_grad_norm_` needs the norm at once.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


def square(gradient: Any) -> Tensor:
    """This rank's part of the squared norm; an element that n ranks of its mesh hold counts 1/n on each of them."""
    local, copies = _local(gradient.detach())
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


def _local(tensor: Any) -> tuple[Tensor, int]:
    """Of a DTensor what this rank holds, and how many ranks hold the same."""
    placements = getattr(tensor, "placements", None)
    if placements is None:
        return tensor, 1
    if any(placement.is_partial() for placement in placements):
        # parts of a sum: their squares say nothing before they are added up
        tensor = tensor.redistribute(placements=[_whole(placement) for placement in placements])
        placements = tensor.placements
    copies = 1
    for dimension, placement in enumerate(placements):
        if placement.is_replicate():
            copies *= tensor.device_mesh.size(dimension)
    return tensor.to_local(), copies


def _whole(placement: Any) -> Any:
    from torch.distributed.tensor import Replicate

    return Replicate() if placement.is_partial() else placement
