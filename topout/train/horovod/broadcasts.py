"""One rank's parameters, optimizer state or object on all ranks.

What an object may be is said in `objects`: nothing that arrives can run code.
"""

from typing import Any

import torch
import torch.distributed as dist

from topout.schema.errors import TopoutError
from topout.train.exchange import carrier
from topout.train.fusion.agreement import first_difference, gather_numbers
from topout.train.horovod.objects import packed, refusal, unpacked
from topout.train.horovod.operations import broadcast_async_, same_root, synchronize
from topout.train.horovod.process_sets import ProcessSet, global_process_set, group_of
from topout.train.horovod.world import rank


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Takes `state_dict()`, `named_parameters()` or a list; what is no tensor in a state_dict stays as it is."""
    if isinstance(params, dict):
        named = sorted(params.items())
    elif isinstance(params, list) or hasattr(params, "__next__"):
        named = [item if isinstance(item, tuple) else (None, item) for item in params]
    else:
        raise ValueError(f"invalid params of type: {type(params)}")
    tensors = [(name, value) for name, value in named if isinstance(value, torch.Tensor)]
    same_root(root_rank, "broadcast_parameters", group_of(global_process_set))
    _refuse_other_tensors(tensors)
    handles = [broadcast_async_(value, root_rank, name) for name, value in tensors]
    for handle in handles:
        synchronize(handle)


def _refuse_other_tensors(tensors: list[tuple[Any, Any]]) -> None:
    """So many small collectives would hang one by one where a rank has one less, or carry one tensor into another."""
    facts = [(name, tuple(value.shape), value.dtype) for name, value in tensors]
    said = [", ".join(str(fact) for fact in of_one if fact is not None) for of_one in facts]
    difference = first_difference(said, "tensor", group_of(global_process_set))
    if difference is not None:
        raise TopoutError(
            "broadcast_parameters: the ranks have different models.",
            why=difference,
            do="build the same model on every rank, with the same arguments, and pass the same tensors",
        )


def broadcast_optimizer_state(optimizer: Any, root_rank: int, model: Any = None) -> None:
    """Options such as the learning rate, and the state where the root has any."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast torch.optim.LBFGS state")
    is_root = rank() == root_rank
    tensors: list[Any] = []
    skeleton = _without_tensors(optimizer.state_dict(), tensors) if is_root else None
    skeleton = broadcast_object(skeleton, root_rank)
    if not is_root:
        _allocate(skeleton, tensors, _device_of(optimizer))
    handles = [broadcast_async_(tensor, root_rank) for tensor in tensors]
    for handle in handles:
        synchronize(handle)
    if not is_root:
        _take_over(optimizer, _with_tensors(skeleton, iter(tensors)))


def _take_over(optimizer: Any, state_dict: dict[str, Any]) -> None:
    """In place: a scheduler may hold the groups, and would go on with old ones after `load_state_dict`."""
    for group, options in zip(optimizer.param_groups, state_dict["param_groups"], strict=True):
        group.update({name: value for name, value in options.items() if name != "params"})
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, state in state_dict["state"].items():
        optimizer.state[parameters[number]] = state


_TENSOR = "topout: a tensor comes here"


def _missing(tensor: Any) -> dict[str, Any]:
    """Stands for a tensor in what travels as an object."""
    return {_TENSOR: True, "shape": list(tensor.shape), "dtype": tensor.dtype, "is_on_cpu": tensor.device.type == "cpu"}


def _is_missing(value: Any) -> bool:
    return isinstance(value, dict) and _TENSOR in value


def _without_tensors(value: Any, found: list[Any]) -> Any:
    if isinstance(value, torch.Tensor):
        found.append(value)
        return _missing(value)
    if isinstance(value, dict):
        return {key: _without_tensors(item, found) for key, item in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(_without_tensors(item, found) for item in value)
    return value


def _allocate(value: Any, into: list[Any], device: Any) -> None:
    if _is_missing(value):
        # step counts lie on the CPU even where parameters do not
        into.append(torch.zeros(value["shape"], dtype=value["dtype"], device="cpu" if value["is_on_cpu"] else device))
    elif isinstance(value, dict):
        for item in value.values():
            _allocate(item, into, device)
    elif isinstance(value, list | tuple):
        for item in value:
            _allocate(item, into, device)


def _with_tensors(value: Any, tensors: Any) -> Any:
    if _is_missing(value):
        return next(tensors)
    if isinstance(value, dict):
        return {key: _with_tensors(item, tensors) for key, item in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(_with_tensors(item, tensors) for item in value)
    return value


def _device_of(optimizer: Any) -> Any:
    return next((p.device for group in optimizer.param_groups for p in group["params"]), torch.device("cpu"))


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The root's object, equal but not identical on the others."""
    group = group_of(process_set)
    device = carrier(group)
    same_root(root_rank, "broadcast_object", group)
    is_root = rank() == root_rank
    raw = packed(obj) if is_root else b""
    length = torch.tensor([_REFUSED if raw is None else len(raw)], dtype=torch.int64, device=device)
    dist.broadcast(length, root_rank, group=group)
    if int(length) == _REFUSED:
        raise refusal(root_rank)
    content = _tensor_of(raw, device) if raw else torch.empty(int(length), dtype=torch.uint8, device=device)
    dist.broadcast(content, root_rank, group=group)
    return obj if is_root else unpacked(content.cpu().numpy().tobytes())


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Every rank's object, in the order of ranks."""
    group = group_of(process_set)
    device = carrier(group)
    raw = packed(obj)
    lengths = [row[0] for row in gather_numbers([_REFUSED if raw is None else len(raw)], group)]
    if raw is None or _REFUSED in lengths:
        raise refusal(lengths.index(_REFUSED))
    mine = _tensor_of(raw + bytes(max(lengths) - len(raw)), device)
    parts = [torch.empty_like(mine) for _ in lengths]
    dist.all_gather(parts, mine, group=group)
    return [unpacked(part.cpu().numpy().tobytes()[:length]) for part, length in zip(parts, lengths, strict=True)]


_REFUSED = -1
"""In place of a length: this rank has an object that cannot travel, and all ranks say so."""


def _tensor_of(raw: bytes, device: Any) -> Any:
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).to(device)
