"""Tensors between ranks as bytes: any shape and type, another number of them on each rank.

Not for gradients or anything in every step: shapes travel as JSON first, and every rank holds everything afterwards.
"""

from collections.abc import Sequence
from math import prod

import torch
import torch.distributed as dist

from topout.train.exchange import carrier, gather
from topout.train.place import Place

Kinds = list[tuple[str, list[int]]]


def gather_tensors(tensors: Sequence[torch.Tensor], place: Place) -> list[list[torch.Tensor]]:
    """What each rank gave, in the order of ranks, in host memory, on every rank."""
    if place.world_size == 1:
        return [[tensor.cpu() for tensor in tensors]]
    kinds: list[Kinds] = gather(_kinds(tensors), place)
    sizes = [sum(_num_bytes(*kind) for kind in of_rank) for of_rank in kinds]
    device = carrier(place.group)
    own = torch.zeros(max(sizes), dtype=torch.uint8, device=device)
    own[: sizes[place.rank]] = as_bytes(tensors).to(device)
    rows = [torch.empty_like(own) for _ in sizes]
    dist.all_gather(rows, own, group=place.group)
    return [_parted(row.cpu(), of_rank) for row, of_rank in zip(rows, kinds, strict=True)]


def from_first(tensors: Sequence[torch.Tensor], place: Place) -> None:
    """Rank 0's values into every rank's tensors, which are of the same shapes and types."""
    if place.world_size == 1 or not tensors:
        return
    data = as_bytes(tensors).to(carrier(place.group))
    dist.broadcast(data, src=0, group=place.group)
    if not place.is_first:
        for tensor, value in zip(tensors, _parted(data.cpu(), _kinds(tensors)), strict=True):
            tensor.copy_(value)


def as_bytes(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    parts = [tensor.detach().contiguous().reshape(-1).view(torch.uint8).cpu() for tensor in tensors]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8)


def _kinds(tensors: Sequence[torch.Tensor]) -> Kinds:
    return [(str(tensor.dtype).removeprefix("torch."), list(tensor.shape)) for tensor in tensors]


def _parted(data: torch.Tensor, kinds: Kinds) -> list[torch.Tensor]:
    tensors, start = [], 0
    for name, shape in kinds:
        end = start + _num_bytes(name, shape)
        # a copy of its own begins where its type wants it to
        tensors.append(data[start:end].clone().view(getattr(torch, name)).reshape(shape))
        start = end
    return tensors


def _num_bytes(name: str, shape: list[int]) -> int:
    return prod(shape) * int(getattr(torch, name).itemsize)
