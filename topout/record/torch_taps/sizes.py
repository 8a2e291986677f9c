"""How many bytes tensors take; parameters, gradients and optimizer state are counted once, after the second step."""

from collections.abc import Iterable
from typing import Any

from topout.record.recorder import Recorder
from topout.record.torch_taps.uncompiled import leave_uncompiled
from topout.schema.event import NOT_GIVEN


def record_sizes(optimizers: Iterable[Any], recorder: Recorder) -> None:
    import torch

    parameters = {id(p): p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    states = [
        value
        for optimizer in optimizers
        for state in optimizer.state.values()
        if isinstance(state, dict)
        for value in state.values()
        if isinstance(value, torch.Tensor)
    ]
    held = [*parameters.values(), *states]
    recorder.fact(
        num_parameters=sum(p.numel() for p in parameters.values()),
        parameter_bytes=sum(_local_bytes(p) for p in parameters.values()),
        gradient_bytes=sum(_local_bytes(p.grad) for p in parameters.values() if p.grad is not None)
        or sum(_local_bytes(p) for p in parameters.values() if p.requires_grad),
        optimizer_bytes=sum(map(_local_bytes, states)),
        host_state_bytes=sum(_local_bytes(tensor) for tensor in held if tensor.device.type == "cpu"),
        is_sharded=_is_sharded(parameters.values()),
        uses_channels_last=any(
            p.dim() == 4 and p.is_contiguous(memory_format=torch.channels_last) and not p.is_contiguous()
            for p in parameters.values()
        ),
    )


@leave_uncompiled
def num_bytes_of(tensor: Any) -> int:
    """Of its values; a sparse tensor does not know."""
    try:
        return int(tensor.nbytes)
    except Exception:
        return NOT_GIVEN


def _is_sharded(parameters: Iterable[Any]) -> bool:
    """Whether this rank holds parts of parameters: of distributed tensors, or FSDP's flat ones or views of them."""
    try:
        parameters = list(parameters)
        flat = [p for p in parameters if getattr(p, "_fsdp_flattened", False)]
        wholes = [getattr(p, "_unpadded_unsharded_size", None) for p in flat]
        if any(whole is not None and p.numel() < whole.numel() for p, whole in zip(flat, wholes, strict=True)):
            return True
        # views of a part have lost their shape; without sharding they keep it
        if flat and all(whole is None for whole in wholes) and all(p.dim() < 2 for p in flat):
            return True
        return any(_is_cut(p) for p in parameters if hasattr(p, "to_local"))
    except Exception:
        return False


def _is_cut(tensor: Any) -> bool:
    sizes = tensor.device_mesh.shape
    return any(not place.is_replicate() and size > 1 for place, size in zip(tensor.placements, sizes, strict=True))


def _local_bytes(tensor: Any) -> int:
    """Bytes on this rank: a sharded tensor counts with its shard."""
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return int(local.numel() * local.element_size())
