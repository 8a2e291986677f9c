"""Torch's fused update, without the walk over all parameters that torch makes in Python before it.

With 200 small tensors the walk takes longer than the update (1.2 of 1.7 ms on a Neoverse N1), at the end of a step on
CPUs, where nothing hides it; on GPUs it is hidden. It finds the same tensors from step to step: here they are kept and
looked over in C. The same kernel gets the same tensors, hence the same bits; anything unusual is left to torch, once it
fits the kernels (`fused_fit`).
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter, is_, itemgetter
from typing import Any

import torch

from topout.schema.errors import TopoutError
from topout.train.fused_fit import fitted, is_dense, lie_alike

Tensors = Sequence[Any]

_gradient_of, _dtype_of = attrgetter("grad"), attrgetter("dtype")
_is_none = partial(is_, None)
_NUMBERS = ("lr", "weight_decay", "maximize", "momentum", "dampening", "nesterov", "eps")
"""Settings that the kernels are handed; torch allows tensors for some."""
_REFUSED = ("amsgrad", "capturable", "differentiable", "foreach")
"""Settings that ask for something else."""
_LONGEST_WAIT = 1000
"""Steps until the next walk, where walks were in vain: parameters without a gradient, or of several kinds."""

_hastened: "weakref.WeakKeyDictionary[Any, QuickStep]" = weakref.WeakKeyDictionary()


def hasten(optimizer: Any) -> bool:
    """Lets a fused SGD, Adam or AdamW of torch update without the walk on CPUs, and rightly anywhere.

    Whether it is the first time; later, as after its state was loaded, what was kept is forgotten.
    """
    known = _hastened.get(optimizer)
    if known is not None:
        known.forget()
        return False
    _hastened[optimizer] = QuickStep(optimizer)
    return True


class QuickStep:
    """Comes last among what is called before `step`: it does the update, and torch is handed an empty optimizer.

    So everything that is put around or before `step` stays: schedules, loss scalers, profilers, hooks of the script.
    """

    def __init__(self, optimizer: Any) -> None:
        # not a copy: copying sets defaults in the groups that both would share
        self._empty: Any = object.__new__(type(optimizer))
        # torch takes no groups for groups that are all to be captured, and would warn where there is a GPU
        self._empty.__dict__ |= {"defaults": optimizer.defaults, "_warned_capturable_if_run_uncaptured": True}
        self._empty.param_groups, self._empty.state = [], {}
        self._undo: list[Callable[[], None]] = []
        self.forget()
        self._handle = optimizer.register_step_pre_hook(self._before_step)
        optimizer.register_step_post_hook(self._after_step)

    def forget(self) -> None:
        self._kept: _Kept | None = None
        self._num_vain = self._num_waited = 0

    def _before_step(self, optimizer: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        is_bare = len(args) == 1 and args[0] is optimizer and not kwargs
        is_scaled = any(getattr(optimizer, name, None) is not None for name in ("grad_scale", "found_inf"))
        kept = self._kept_of(optimizer) if self._is_last(optimizer) and not torch.compiler.is_compiling() else None
        gathered = None if kept is None else kept.gathered(optimizer.param_groups)
        if gathered is None:
            if not torch.compiler.is_compiling():
                self._undo = fitted(optimizer, is_scaled=is_scaled)
            return None
        assert kept is not None
        if not is_bare or is_scaled or not kept.is_on_cpu:
            return None
        kept.update(optimizer.param_groups, gathered)
        return (self._empty,), {}

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        while self._undo:
            self._undo.pop()()
        if not self._is_last(optimizer):
            # what was put before `step` since then, as by a checkpoint that must have copied before, comes first
            optimizer._optimizer_step_pre_hooks.move_to_end(self._handle.id)

    def _kept_of(self, optimizer: Any) -> "_Kept | None":
        if self._kept is not None and self._kept.is_of(optimizer):
            return self._kept
        self._kept = None
        self._num_waited += 1
        if self._num_waited > min(2**self._num_vain // 8, _LONGEST_WAIT):
            self._kept = _Kept.of(optimizer)
            self._num_vain, self._num_waited = (0 if self._kept else min(self._num_vain + 1, 16)), 0
        return self._kept

    def _is_last(self, optimizer: Any) -> bool:
        return bool(next(reversed(optimizer._optimizer_step_pre_hooks), None) == self._handle.id)


class _Kept:
    """What the walk found: parameters of each group and where their state is."""

    def __init__(self, optimizer: Any, groups: "list[_Group]") -> None:
        self._groups = groups
        self._state = optimizer.state
        self._states = list(optimizer.state.values())
        self.is_on_cpu = all(group.device_type == "cpu" for group in groups)

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

    def gathered(self, settings: Sequence[Mapping[str, Any]]) -> list[list[list[Any]]] | None:
        """What the kernels of each group are to be given beside its parameters; None where they would not do."""
        if not all(map(_are_plain, settings)):
            return None
        try:
            found = [group.gathered(values) for group, values in zip(self._groups, settings, strict=True)]
            return found if all(map(_Group.fits, self._groups, found)) else None
        except (KeyError, RuntimeError, TopoutError):
            # state that somebody has taken away; a sparse gradient, which has no strides; one that travels
            return None

    def update(self, settings: Sequence[Mapping[str, Any]], gathered: Sequence[Sequence[Tensors]]) -> None:
        with torch.no_grad():
            for group, values, tensors in zip(self._groups, settings, gathered, strict=True):
                group.update(values, *tensors)


class _Group:
    """The parameters of one group."""

    def __init__(self, optimizer: Any, group: Mapping[str, Any]) -> None:
        self._parameters = list(group["params"])
        self._states = [optimizer.state.get(parameter) or {} for parameter in self._parameters]
        self._is_sgd = type(optimizer) is torch.optim.SGD
        self._is_adamw = type(optimizer) is torch.optim.AdamW
        kinds = {(type(one), one.device, one.dtype) for one in self._parameters}
        self._dtype = self._parameters[0].dtype if kinds else None
        self.device_type = self._parameters[0].device.type if kinds else None
        self._dense_strides: list[tuple[int, ...]] = []
        self.is_plain = len(kinds) == 1 and type(self._parameters[0]) is torch.nn.Parameter and self._has_all(group)

    def _has_all(self, group: Mapping[str, Any]) -> bool:
        tensors = [state.get(name) for state in self._states for name in self._names(group) if name != "step"]
        return all(isinstance(tensor, torch.Tensor) and tensor.dtype is self._dtype for tensor in tensors)

    def is_of(self, group: Mapping[str, Any]) -> bool:
        parameters = group["params"]
        return _are_same(parameters, self._parameters) and set(map(_dtype_of, parameters)) == {self._dtype}

    def gathered(self, group: Mapping[str, Any]) -> list[list[Any]]:
        """Gradients, then what each name of the state stands for."""
        kept = [list(map(itemgetter(name), self._states)) for name in self._names(group)]
        return [list(map(_gradient_of, self._parameters)), *kept]

    def fits(self, gathered: Sequence[Tensors]) -> bool:
        """Whether all are there, and lie in memory as the parameters do."""
        if any(any(map(_is_none, tensors)) for tensors in gathered):
            return False
        # but for the count of steps, a number each
        like_them = [self._parameters, *gathered[:3]]
        if all(all(map(torch.Tensor.is_contiguous, tensors)) for tensors in like_them):
            return True
        strides = list(map(torch.Tensor.stride, self._parameters))
        if strides != self._dense_strides:
            # they were laid out anew
            self._dense_strides = strides if all(map(is_dense, self._parameters)) else []
        return bool(self._dense_strides) and all(map(self._lie_like_parameters, gathered[:3]))

    def _lie_like_parameters(self, tensors: Tensors) -> bool:
        are_same = list(map(torch.Tensor.stride, tensors)) == self._dense_strides
        return are_same or all(map(lie_alike, tensors, self._parameters))

    def update(self, group: Mapping[str, Any], gradients: Tensors, *kept: Tensors) -> None:
        """As torch's `_fused_sgd` and `_fused_adam` do."""
        shared = {name: group[name] for name in ("lr", "weight_decay", "maximize")}
        if self._is_sgd:
            shared |= {name: group[name] for name in ("momentum", "dampening", "nesterov")}
            torch._fused_sgd_(self._parameters, gradients, kept[0] if kept else [], is_first_step=False, **shared)
            return
        averages, squares, steps = kept
        torch._foreach_add_(steps, 1)
        decouples = group.get("decoupled_weight_decay", self._is_adamw)
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
