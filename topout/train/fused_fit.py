"""Makes what a fused optimizer is about to be given fit its kernels, which do not look at it themselves.

They walk parameter, gradient and state as plain memory, whatever the strides, and on CPUs compute wrongly without a
word where these differ. They know no sparse gradients, and of momentum only what all parameters have or none. A script
that did not ask for them must not notice: it gets a copy of the gradient, or torch's other kernels, for that step.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import NoneType
from typing import Any

import torch

from topout.train.gone_gradient import GoneGradient


def is_dense(tensor: Any) -> bool:
    """Whether its elements fill their memory without gaps, in whatever order."""
    return bool(tensor.is_contiguous() or lie_alike(torch.empty_like(tensor, device="meta"), tensor))


def lie_alike(one: Any, other: Any) -> bool:
    """Whether their elements follow each other in the same order; a dimension of one element has any stride."""
    pairs = zip(one.stride(), other.stride(), one.shape, strict=True)
    return all(stride == its or size <= 1 for stride, its, size in pairs)


def like_parameters(optimizer: Any) -> None:
    """State in the memory order of its parameter: fused kernels walk both at once."""
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if not isinstance(value, torch.Tensor) or value.shape != parameter.shape:
                continue
            if not lie_alike(value, parameter):
                state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def is_half_on_a_cpu(parameter: Any) -> bool:
    """Torch's fused SGD (2.13) leaves such parameters as they are."""
    return bool(parameter.device.type == "cpu" and parameter.element_size() == 2)


def fitted(optimizer: Any, *, is_scaled: bool) -> list[Callable[[], None]]:
    """What must be undone after this step; gradients that a loss scaler has left to the kernels stay with them."""
    undo: list[Callable[[], None]] = []
    for group in optimizer.param_groups:
        if not group.get("fused"):
            continue
        # one that travels into the next forward is applied where it arrives
        parameters = [one for one in group["params"] if not isinstance(one.grad, GoneGradient | NoneType)]
        gradients = [parameter.grad for parameter in parameters]
        if not is_scaled and need_other_kernels(optimizer, group, parameters, gradients):
            group["fused"] = False
            undo.append(partial(group.update, fused=True))
            continue
        lay_out_state(optimizer, parameters)
        undo += _with_copies(parameters)
    return undo


def need_other_kernels(
    optimizer: Any, settings: Mapping[str, Any], parameters: Sequence[Any], gradients: Sequence[Any]
) -> bool:
    """For what the fused ones do not know, or would take for something else."""
    given = zip(parameters, gradients, strict=True)
    if not all(one.layout is torch.strided and is_dense(parameter) for parameter, one in given):
        return True
    states = [optimizer.state.get(parameter) or {} for parameter in parameters]
    for parameter, gradient, state in zip(parameters, gradients, states, strict=True):
        # but for the count of steps, a number
        beside = [gradient, *(value for name, value in state.items() if name != "step" and torch.is_tensor(value))]
        if any(value.shape != parameter.shape or value.dtype is not parameter.dtype for value in beside):
            return True
    if type(optimizer) is not torch.optim.SGD:
        return False
    num_begun = sum(state.get("momentum_buffer") is not None for state in states)
    is_begun_in_part = bool(settings["momentum"]) and 0 < num_begun < len(states)
    return is_begun_in_part or any(map(is_half_on_a_cpu, parameters))


def lay_out_state(optimizer: Any, parameters: Sequence[Any]) -> None:
    """Of all parameters, where it lies otherwise for one of these."""
    states = (optimizer.state.get(parameter) or {} for parameter in parameters)
    for parameter, state in zip(parameters, states, strict=True):
        if any(value.shape == parameter.shape and not lie_alike(value, parameter) for value in _tensors(state)):
            like_parameters(optimizer)
            return


def _tensors(state: Mapping[str, Any]) -> Iterator[Any]:
    return (value for value in state.values() if isinstance(value, torch.Tensor))


def _with_copies(parameters: list[Any]) -> Iterator[Callable[[], None]]:
    """In place of gradients that lie otherwise in memory; the script's own come back."""
    for parameter in parameters:
        gradient = parameter.grad
        if gradient.layout is torch.strided and is_dense(parameter) and not lie_alike(gradient, parameter):
            parameter.grad = copied = like(parameter, gradient)
            yield partial(_give_back, parameter, copied, copied._version, gradient)


def like(parameter: Any, gradient: Any) -> Any:
    """A copy of the gradient that lies in memory as its parameter does."""
    return torch.empty_like(parameter, dtype=gradient.dtype, requires_grad=False).copy_(gradient)


def _give_back(parameter: Any, copied: Any, version: int, gradient: Any) -> None:
    """Unless a closure has computed another one since; with what a later hook has made of it, such as clipping."""
    if parameter.grad is copied:
        if copied._version != version:
            with torch.no_grad():
                gradient.copy_(copied)
        parameter.grad = gradient
