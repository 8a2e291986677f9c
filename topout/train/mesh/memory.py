"""What each rank holds: megabytes of parameters, gradients and optimizer state, measured from its own shards.

Activations are not in it: on a GPU the peak of allocated memory has them, on a CPU nothing tells them apart.
"""

from collections.abc import Iterable
from typing import Any

import torch

from topout.record.clock import now_ns
from topout.record.recorder import current
from topout.schema.event import NOT_GIVEN, Kind
from topout.train.mesh.gradient_norm import local_part

COLUMNS = ("parameters", "gradients", "optimizer", "peak")


def held_bytes(parameters: Iterable[Any], optimizer: Any, device: torch.device) -> dict[str, int]:
    """Of this rank, between backward and zero_grad; `peak` is 0 on a CPU, where nobody counts."""
    parameters = list(parameters)
    kept = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)]
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return {
        "parameters": _num_bytes(parameters),
        "gradients": _num_bytes(gradients),
        "optimizer": _num_bytes(kept),
        "peak": torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0,
    }


def record(held: dict[str, int]) -> None:
    """Into the run folder, where there is one."""
    recorder = current()
    for name, num_bytes in held.items() if recorder is not None else ():
        if num_bytes and recorder is not None:
            recorder.emit((recorder.code(Kind.COUNT, f"memory.{name}_bytes"), now_ns(), 0, num_bytes, NOT_GIVEN))


def table(by_rank: list[dict[str, int]], places: list[str]) -> str:
    """One line a rank, in MB; dimensions and columns that say nothing are left out."""
    columns = [name for name in COLUMNS if any(held[name] for held in by_rank)]
    width = max(len(place) for place in places)
    lines = [f"{'MB':{width + 6}}" + "".join(f"{name:>12}" for name in columns)]
    for rank, (held, place) in enumerate(zip(by_rank, places, strict=True)):
        lines.append(f"{rank:4d}  {place:{width}}" + "".join(f"{held[name] / 1e6:12.2f}" for name in columns))
    return "\n".join(lines)


def _num_bytes(tensors: Iterable[Any]) -> int:
    return sum(local_part(tensor).numel() * tensor.element_size() for tensor in tensors)
