"""Torch's fused update, without the walk over all parameters that torch makes in Python before it.

With 200 small tensors the walk takes longer than the update (1.2 of 1.7 ms on a Neoverse N1), at the end of a step on
CPUs, where nothing hides it; on GPUs it is hidden. It finds the same tensors from step to step: here they are kept and
looked over in C. The same kernel gets the same tensors, hence the same bits; anything unusual is left to torch, once it
fits the kernels (`fused_fit`).
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import torch

from topout.schema.errors import TopoutError
from topout.train.fused_fit import fitted
from topout.train.fused_group import FusedGroup, Tensors, are_plain, are_same

_Given = tuple[Tensors, Sequence[Tensors]]
"""Gradients of a group, and what each name of its state stands for."""

_gradient_of = attrgetter("grad")
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
        if torch.compiler.is_compiling():
            return None
        is_scaled = any(getattr(optimizer, name, None) is not None for name in ("grad_scale", "found_inf"))
        if len(args) != 1 or args[0] is not optimizer or kwargs:
            return self._fitted_inside(optimizer, args, kwargs, is_scaled=is_scaled)
        kept = self._kept_of(optimizer) if self._is_last(optimizer) else None
        if kept is not None and kept.has_no_gradients():
            # all were updated in parts (`partial_step`)
            return (self._empty,), {}
        gathered = None if kept is None else kept.gathered(optimizer.param_groups)
        if kept is None or gathered is None:
            self._undo = fitted(optimizer, is_scaled=is_scaled)
            return None
        if is_scaled or not kept.is_on_cpu:
            return None
        kept.update(optimizer.param_groups, gathered)
        return (self._empty,), {}

    def _fitted_inside(
        self, optimizer: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, is_scaled: bool
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A closure computes gradients inside of the step: they are looked at when it has."""
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self._undo = fitted(optimizer, is_scaled=is_scaled)
            return args, dict(kwargs)

        def computed() -> Any:
            loss = closure()
            with torch.no_grad():
                self._undo += fitted(optimizer, is_scaled=is_scaled)
            return loss

        return args[:1], {**kwargs, "closure": computed}

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

    def __init__(self, optimizer: Any, groups: list[FusedGroup]) -> None:
        self._groups = groups
        self._state = optimizer.state
        self._states = list(optimizer.state.values())
        self.is_on_cpu = all(group.device_type == "cpu" for group in groups)

    @classmethod
    def of(cls, optimizer: Any) -> "_Kept | None":
        """None until torch has made all state, and for tensors that its kernels take one kind at a time."""
        groups = [FusedGroup(optimizer, group["params"], group) for group in optimizer.param_groups]
        return cls(optimizer, groups) if all(group.is_plain for group in groups) else None

    def is_of(self, optimizer: Any) -> bool:
        """Whether the optimizer still has these parameters and this state, which loading a checkpoint replaces."""
        return (
            optimizer.state is self._state
            and are_same(self._state.values(), self._states)
            and len(optimizer.param_groups) == len(self._groups)
            and all(
                known.is_of(group["params"]) for known, group in zip(self._groups, optimizer.param_groups, strict=True)
            )
        )

    def has_no_gradients(self) -> bool:
        return all(parameter.grad is None for group in self._groups for parameter in group.parameters)

    def gathered(self, settings: Sequence[Mapping[str, Any]]) -> "list[_Given] | None":
        """What the kernels of each group are to be given beside its parameters; None where they would not do."""
        if not all(map(are_plain, settings)):
            return None
        found: list[_Given] = []
        try:
            for group, values in zip(self._groups, settings, strict=True):
                gradients, kept = list(map(_gradient_of, group.parameters)), group.kept(values)
                if not group.fits(gradients, kept):
                    return None
                found.append((gradients, kept))
        except (KeyError, RuntimeError, TopoutError):
            # state that somebody has taken away; a sparse gradient, which has no strides; one that travels
            return None
        return found

    def update(self, settings: Sequence[Mapping[str, Any]], given: "Sequence[_Given]") -> None:
        with torch.no_grad():
            for group, values, tensors in zip(self._groups, settings, given, strict=True):
                group.update(values, *tensors)
