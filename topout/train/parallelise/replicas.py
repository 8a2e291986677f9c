"""Whether all ranks hold the same values, told by one number of each, and rank 0's values on all of them."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from topout.train.fusion.agreement import gather_numbers
from topout.train.parallelise.draws import host_state, set_host_state
from topout.train.store_notes import await_all, leave

_AT_THE_END = "parameters at the end"
_MOST_WAITED = timedelta(seconds=30)
"""For ranks that are still in their scripts when rank 0's has ended."""
_MOST_IN_ONE_PIECE = 1 << 18
"""Elements; larger ones are worth a collective of their own, and no copy."""
_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def fingerprint(tensors: Iterable[Any]) -> int:
    """Their bits added up as whole numbers: neither the order nor the number of threads changes such a sum."""
    by_device: dict[Any, Any] = {}
    for tensor in tensors:
        by_device[tensor.device] = by_device.get(tensor.device, 0) + _bits(tensor).sum(dtype=torch.int64)
    total = sum(int(found) for found in by_device.values())
    return (total + 2**63) % 2**64 - 2**63


def _bits(tensor: Any) -> Any:
    values = tensor.detach()
    if values.is_complex():
        values = torch.view_as_real(values)
    return values.contiguous().view(_WHOLE[values.element_size()])


def first_that_differs(number: int) -> int | None:
    """The first rank that has another number than rank 0; all ranks ask together."""
    return _first_other([row[0] for row in gather_numbers([number], dist.group.WORLD)])


def first_that_differed(number: int) -> int | None:
    """As rank 0 finds it when its script has ended; the others only leave their numbers, and None comes back.

    A rank may not be there any more, or never end.
    """
    try:
        leave(_AT_THE_END, str(number))
        if dist.get_rank() > 0:
            return None
        return _first_other(
            [int(found) for found in await_all(_AT_THE_END, range(dist.get_world_size()), _MOST_WAITED)]
        )
    except RuntimeError:
        return None


def _first_other(numbers: list[int]) -> int | None:
    return next((rank for rank, found in enumerate(numbers) if found != numbers[0]), None)


def broadcast(tensors: Iterable[Any]) -> None:
    """Those of rank 0, one after the other."""
    for tensor in tensors:
        whole = tensor.detach().contiguous()
        dist.broadcast(whole, 0)
        if whole.data_ptr() != tensor.data_ptr():
            with torch.no_grad():
                tensor.copy_(whole)


def equalise_host_draws() -> None:
    """Python's and NumPy's random numbers go on where rank 0's are."""
    state = torch.tensor(host_state(), dtype=torch.float64)
    dist.broadcast(state, 0)
    if dist.get_rank() > 0:
        set_host_state(state.tolist())


def broadcast_many(tensors: Iterable[Any]) -> None:
    """Those of rank 0, small ones in one piece for each kind: a network has hundreds of statistics of a few bytes."""
    kinds: dict[Any, list[Any]] = {}
    for tensor in tensors:
        if tensor.numel() > _MOST_IN_ONE_PIECE:
            broadcast([tensor])
        else:
            kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for members in kinds.values():
        flat = torch.cat([member.detach().reshape(-1) for member in members])
        dist.broadcast(flat, 0)
        parts = flat.split([member.numel() for member in members])
        for member, part in zip(members, parts, strict=True):
            # past autograd's version counter: a graph made before may still run backward through these
            member.data.copy_(part.view(member.shape))
