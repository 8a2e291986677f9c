"""Torch's fused update, without the walk over all parameters that torch makes in Python before it.

With 200 small tensors the walk takes longer than the update (1.2 of 1.7 ms on a Neoverse N1), at the end of a step on
CPUs, where nothing hides it; on GPUs it is hidden. It finds the same tensors from step to step: here they are kept and
looked over in C. The same kernel gets the same tensors, hence the same bits; anything unusual is left to torch.
"""

import copy
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter, is_, itemgetter
from typing import Any

import torch

Tensors = Sequence[Any]

_gradient_of = attrgetter("grad")
_is_none = partial(is_, None)
_NUMBERS = ("lr", "weight_decay", "maximize", "momentum", "dampening", "nesterov", "eps")
"""Settings that the kernels are handed; torch allows tensors for some."""
_REFUSED = ("amsgrad", "capturable", "differentiable", "foreach")
"""Settings that ask for something else."""
_MOST_WALKS = 10
"""In vain, after which torch is left alone: some parameters have no gradient, or they are of several kinds."""

_hastened: "weakref.WeakSet[Any]" = weakref.WeakSet()


def hasten(optimizer: Any) -> None:
    """Lets a fused SGD, Adam or AdamW of torch update its parameters without the walk. Twice does no harm."""
    is_on_cpu = all(one.device.type == "cpu" for group in optimizer.param_groups for one in group["params"])
    if is_on_cpu and optimizer not in _hastened:
        _hastened.add(optimizer)
        QuickStep(optimizer)


class QuickStep:
    """Comes last among what is called before `step`: it does the update, and torch is handed an empty optimizer.

    So everything that is put around or before `step` stays: schedules, loss scalers, profilers, hooks of the script.
    """

    def __init__(self, optimizer: Any) -> None:
        self._empty = copy.copy(optimizer)
        self._empty.param_groups, self._empty.state = [], {}
        self._kept: _Kept | None = None
        self._walks_left = _MOST_WALKS
        self._handle = optimizer.register_step_pre_hook(self._before_step)
        optimizer.register_step_post_hook(self._after_step)

    def _before_step(self, optimizer: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        is_bare = len(args) == 1 and args[0] is optimizer and not kwargs
        is_scaled = any(getattr(optimizer, name, None) is not None for name in ("grad_scale", "found_inf"))
        if not is_bare or is_scaled or not self._is_last(optimizer) or torch.compiler.is_compiling():
            return None
        kept = self._kept_of(optimizer)
        if kept is None or not kept.update(optimizer.param_groups):
            return None
        return (self._empty,), {}

    def _kept_of(self, optimizer: Any) -> "_Kept | None":
        if self._kept is not None and self._kept.is_of(optimizer):
            return self._kept
        self._kept = _Kept.of(optimizer) if self._walks_left else None
        if self._kept is None:
            self._walks_left = max(0, self._walks_left - 1)
        return self._kept

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        if not self._is_last(optimizer):
            # what was put before `step` since then, as by a checkpoint that must have copied before, comes first
            optimizer._optimizer_step_pre_hooks.move_to_end(self._handle.id)

    def _is_last(self, optimizer: Any) -> bool:
        return bool(next(reversed(optimizer._optimizer_step_pre_hooks), None) == self._handle.id)


class _Kept:
    """What the walk found: parameters of each group and where their state is."""

    def __init__(self, optimizer: Any, groups: "list[_Group]") -> None:
        self._groups = groups
        self._state = optimizer.state
        self._states = list(optimizer.state.values())

    @classmethod
    def of(cls, optimizer: Any) -> "_Kept | None":
        """None until torch has made all state, and for tensors that its kernels take one kind at a time."""
        groups = [_Group(optimizer, group) for group in optimizer.param_groups]
        return cls(optimizer, groups) if all(group.is_plain for group in groups) else None

    def is_of(self, optimizer: Any) -> bool:
        """Whether the optimizer still has these parameters and this state, which loading a checkpoint replaces."""
        return (
            optimizer.state is self._state
            and _are_same(self._state.values(), self._states)
            and len(optimizer.param_groups) == len(self._groups)
            and all(map(_Group.is_of, self._groups, optimizer.param_groups))
        )

    def update(self, settings: Sequence[Mapping[str, Any]]) -> bool:
        """Whether it was done; else nothing was."""
        if not all(map(_are_plain, settings)):
            return False
        try:
            gathered = [group.gathered(values) for group, values in zip(self._groups, settings, strict=True)]
        except KeyError:
            return False
        if any(any(map(_is_none, tensors)) for lists in gathered for tensors in lists):
            return False
        with torch.no_grad():
            for group, values, tensors in zip(self._groups, settings, gathered, strict=True):
                group.update(values, *tensors)
        return True


class _Group:
    """The parameters of one group."""

    def __init__(self, optimizer: Any, group: Mapping[str, Any]) -> None:
        self._parameters = list(group["params"])
        self._states = [optimizer.state.get(parameter) or {} for parameter in self._parameters]
        self._is_sgd = type(optimizer) is torch.optim.SGD
        self._is_adamw = type(optimizer) is torch.optim.AdamW
        kinds = {(type(one), one.device.type, one.dtype) for one in self._parameters}
        self._dtype = self._parameters[0].dtype if kinds else None
        wanted = self._names(group)
        self.is_plain = kinds == {(torch.nn.Parameter, "cpu", self._dtype)} and all(
            isinstance(state.get(name), torch.Tensor) for state in self._states for name in wanted
        )

    def is_of(self, group: Mapping[str, Any]) -> bool:
        parameters = group["params"]
        return _are_same(parameters, self._parameters) and parameters[0].dtype is self._dtype

    def gathered(self, group: Mapping[str, Any]) -> list[list[Any]]:
        """Gradients, then what each name of the state stands for."""
        kept = [list(map(itemgetter(name), self._states)) for name in self._names(group)]
        return [list(map(_gradient_of, self._parameters)), *kept]

    def update(self, group: Mapping[str, Any], gradients: Tensors, *kept: Tensors) -> None:
        """As torch's `_fused_sgd` and `_fused_adam` do."""
        shared = {name: group[name] for name in ("lr", "weight_decay", "maximize")}
        if self._is_sgd:
            shared |= {name: group[name] for name in ("momentum", "dampening", "nesterov")}
            torch._fused_sgd_(self._parameters, gradients, kept[0] if kept else [], is_first_step=False, **shared)
            return
        averages, squares, steps = kept
        torch._foreach_add_(steps, 1)
        decouples = self._is_adamw or group.get("decoupled_weight_decay")
        kernel: Callable[..., None] = torch._fused_adamw_ if decouples else torch._fused_adam_
        beta1, beta2 = group["betas"]
        shared |= {"beta1": beta1, "beta2": beta2, "eps": group["eps"], "amsgrad": False}
        kernel(self._parameters, gradients, averages, squares, [], steps, **shared)

    def _names(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        if self._is_sgd:
            return ("momentum_buffer",) if group["momentum"] else ()
        return ("exp_avg", "exp_avg_sq", "step")


def _are_plain(group: Mapping[str, Any]) -> bool:
    """Whether its settings are numbers, and ask for the fused kernel."""
    numbers = [*(group[name] for name in _NUMBERS if name in group), *group.get("betas", ())]
    asks = group.get("fused") and not any(group.get(name) for name in _REFUSED)
    return bool(asks) and all(isinstance(number, float | int) for number in numbers)


def _are_same(some: Any, others: Any) -> bool:
    return len(some) == len(others) and all(map(is_, some, others))
