"""Small values between ranks, as JSON: torch's own object collectives unpickle whatever arrives.

Not for tensors of a model, and not in every step: each call is two collectives that all ranks must make.
"""

import json
from typing import Any

import torch
import torch.distributed as dist

from topout.train.place import Place


def gather(value: Any, place: Place) -> list[Any]:
    """What each rank gave, in the order of ranks, on every rank."""
    return [value] if place.world_size == 1 else gather_in(value, place.group)


def gather_in(value: Any, group: Any) -> list[Any]:
    """What each rank of a group gave."""
    data = json.dumps(value).encode()
    device = carrier(group)
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(dist.get_world_size(group))]
    dist.all_gather(sizes, torch.tensor([len(data)], device=device), group=group)
    lengths = [int(size) for size in sizes]
    own = torch.zeros(max(lengths), dtype=torch.uint8, device="cpu")
    own[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    rows = [torch.empty(max(lengths), dtype=torch.uint8, device=device) for _ in lengths]
    dist.all_gather(rows, own.to(device), group=group)
    return [json.loads(bytes(row.cpu().numpy()[:length])) for row, length in zip(rows, lengths, strict=True)]


def from_first(value: Any, place: Place) -> Any:
    """What rank 0 gave; the others may pass anything."""
    return gather(value if place.is_first else None, place)[0]


def all_agree(claim: bool, place: Place) -> bool:
    """Whether it holds on every rank."""
    if place.world_size == 1:
        return claim
    flag = torch.tensor([int(claim)], device=carrier(place.group))
    dist.all_reduce(flag, op=dist.ReduceOp.MIN, group=place.group)
    return bool(flag.item())


def carrier(group: Any) -> torch.device:
    """Where a tensor must lie for this group to carry it: a group of NCCL alone knows no host memory."""
    backends = str(dist.get_backend_config(group))
    if "cpu" in backends and "gloo" in backends:
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device()) if "nccl" in backends else torch.device("cpu")
