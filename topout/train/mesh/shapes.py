"""What passes between stages, found by running the whole model on tensors without values.

So nothing is computed twice, no statistics of BatchNorm are touched, and no rank asks another. The same run shows
whether sequence() and forward are the same computation. Where operations hang on values, the stages compute one
microbatch instead, and ranks tell each other its sizes as JSON: torch's own way unpickles what arrives. Not for sizes
that change from one microbatch to the next.
"""

import copy
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from topout.schema.errors import TopoutError
from topout.train.exchange import gather_in
from topout.train.mesh.initial import named_tensors, replace_tensors
from topout.train.mesh.parts import Part, applied
from topout.train.mesh.stage import Stage

Boundary = tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]


def boundaries(
    model: Any, stages: Sequence[Sequence[Part]], inputs: tuple[torch.Tensor, ...], precision: str | None
) -> list[Boundary] | None:
    """(inputs, outputs) of each stage for one microbatch like `inputs`, as tensors on no device.

    None where the model cannot be run without values.
    """
    try:
        # not public
        from torch._subclasses.fake_tensor import FakeTensorMode

        device = inputs[0].device
        hollow = copy.deepcopy(model)
        with FakeTensorMode():
            tensors = named_tensors(hollow).values()
            replace_tensors(hollow, {id(t): torch.empty(t.shape, dtype=t.dtype, device=device) for t in tensors})
            values = tuple(torch.empty(t.shape, dtype=t.dtype, device=device) for t in inputs)
            # before autocast: it keeps weights that it has cast, so a second run does fewer operations than the first
            is_same = _is_same(hollow, [part for parts in stages for part in parts], values)
            with torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext():
                found = _passed(hollow, stages, values)
    except Exception:  # a model may do anything
        return None
    if not is_same:
        raise TopoutError(
            f"{type(model).__name__}.sequence() is not its forward.",
            why="Applied one after the other, its items do other operations than forward does.",
            do="write forward as `for part in self.sequence(): x = part(x)`",
        )
    return found


def computed_boundaries(
    stages: Mapping[int, Stage], owners: Sequence[int], inputs: tuple[torch.Tensor, ...], group: Any
) -> list[Boundary]:
    """As `boundaries`, by computing one microbatch: `stages` are this rank's, `owners` who in the group has each."""
    values, found, device = inputs, [], inputs[0].device
    for number, owner in enumerate(owners):
        given, told = values, None
        if number in stages:
            values = _tried(stages[number], values)
            told = [(list(t.shape), str(t.dtype).removeprefix("torch."), t.requires_grad) for t in values]
        told = gather_in(told, group)[owner]
        if number not in stages:
            values = tuple(torch.empty(shape, dtype=getattr(torch, dtype), device=device) for shape, dtype, _ in told)
        values = tuple(t.detach() for t in values)
        for value in values:
            dist.broadcast(value, group=group, group_src=owner)
        values = tuple(t.requires_grad_(has) for t, (_, _, has) in zip(values, told, strict=True))
        found.append((tuple(map(_hollow, given)), tuple(map(_hollow, values))))
    return found


def _tried(stage: Stage, values: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """What it returns; statistics and random numbers stay as they were."""
    device = values[0].device
    stage.sends = None
    kept = [(buffer, buffer.clone()) for buffer in stage.buffers()]
    with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.enable_grad():
        result = stage(*values)
    for buffer, before in kept:
        buffer.copy_(before)
    return result if isinstance(result, tuple) else (result,)


def _passed(model: Any, stages: Sequence[Sequence[Part]], values: tuple[Any, ...]) -> list[Boundary]:
    found = []
    for parts in stages:
        result = applied([part.run(model) for part in parts], *values)
        results = result if isinstance(result, tuple) else (result,)
        found.append((tuple(map(_hollow, values)), tuple(map(_hollow, results))))
        values = tuple(value.detach().requires_grad_(value.requires_grad) for value in results)
    return found


def _hollow(tensor: torch.Tensor) -> torch.Tensor:
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta").requires_grad_(tensor.requires_grad)


def _is_same(model: Any, parts: Sequence[Part], values: tuple[Any, ...]) -> bool:
    if type(model) is nn.Sequential:
        return True
    return _operations(lambda: model(*values)) == _operations(
        lambda: applied([part.run(model) for part in parts], *values)
    )


def _operations(compute: Any) -> list[tuple[str, tuple[int, ...]]]:
    """Names of the operations, and sizes of what they return first."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    done: list[tuple[str, tuple[int, ...]]] = []

    class Log(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            sizes = [tuple(leaf.shape) for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
            done.append((str(function), sizes[0] if sizes else ()))
            return result

    with Log():
        compute()
    return done
