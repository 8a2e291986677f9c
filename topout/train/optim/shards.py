"""Parameters of which each rank holds a part (DTensor: FSDP2, tensor parallel): their parts, and norms of the whole.

Not for FSDP's first version, whose flat parameters have lost where one tensor ends and the next begins.
"""

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from topout.schema.errors import TopoutError
from topout.train.optim.slot import Slot


def is_sharded(tensor: Any) -> bool:
    return hasattr(tensor, "placements") and hasattr(tensor, "device_mesh")


def local(tensor: Any) -> Any:
    """This rank's part, which shares memory; a plain tensor is its own."""
    part = tensor.to_local() if is_sharded(tensor) else tensor
    # the result of a functional collective: its memory is there once it has been waited for
    return part.wait() if hasattr(part, "elem") and hasattr(part, "wait") else part


def aligned_gradient(parameter: Any, name: str) -> Any:
    """The gradient, laid out over ranks as its parameter is."""
    gradient = parameter.grad
    if not is_sharded(parameter):
        return gradient
    if any(placement.is_partial() for placement in parameter.placements):
        raise TopoutError(
            f"{name} is a parameter of partial sums ({parameter.placements}).",
            why="No rank holds its value, so there is nothing that a step could change.",
            do="shard or replicate parameters; partial sums are for activations",
        )
    if gradient.placements != parameter.placements:
        return gradient.redistribute(placements=parameter.placements)
    return gradient


def add_over_ranks(slots: Sequence[Slot], sums: Any) -> None:
    """Makes sums of squares those of whole tensors: one all-reduce for each mesh dimension that something is cut along.

    Replicas hold equal values and count once. All ranks come here with the same parameters.
    """
    cut: dict[Any, tuple[Any, list[int]]] = {}
    for number, slot in enumerate(slots):
        if not is_sharded(slot.parameter) or not slot.adapts:
            continue
        mesh = slot.parameter.device_mesh
        for dimension, placement in enumerate(slot.parameter.placements):
            if not placement.is_replicate() and mesh.size(dimension) > 1:
                group = mesh.get_group(dimension)
                cut.setdefault(group, (group, []))[1].append(number)
    for group, numbers in cut.values():
        part = sums[numbers].contiguous()
        dist.all_reduce(part, group=group)
        sums[numbers] = part
