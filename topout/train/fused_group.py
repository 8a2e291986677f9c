"""Torch's fused kernel for the parameters of one group, handed over without torch's walk in Python.

The same kernel gets the same tensors, hence the same bits. Whoever calls has seen that gradients and state are there
and lie as the parameters do (`fits`); the kernels take it for granted.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter, is_, itemgetter
from typing import Any

import torch

from topout.train.fused_fit import is_dense, is_half_on_a_cpu, lie_alike

Tensors = Sequence[Any]

_dtype_of = attrgetter("dtype")
_is_none = partial(is_, None)
_PLAIN_NUMBERS = frozenset({float, int, bool})
_KINDS = (torch.nn.Parameter, torch.Tensor)
"""Not classes derived from them, such as the distributed ones."""
_NUMBERS = ("lr", "weight_decay", "maximize", "momentum", "dampening", "nesterov", "eps")
"""Settings that the kernels are handed; torch allows tensors for some."""
_REFUSED = ("amsgrad", "capturable", "differentiable", "foreach")
"""Settings that ask for something else."""


class FusedGroup:
    """Parameters that share their settings, and where their state is."""

    def __init__(self, optimizer: Any, parameters: Tensors, settings: Mapping[str, Any]) -> None:
        self.parameters = list(parameters)
        self._states = [optimizer.state.get(parameter) or {} for parameter in self.parameters]
        self._is_sgd = type(optimizer) is torch.optim.SGD
        self._is_adamw = type(optimizer) is torch.optim.AdamW
        kinds = {(type(one), one.device, one.dtype) for one in self.parameters}
        self._dtype = self.parameters[0].dtype if kinds else None
        self.device_type = self.parameters[0].device.type if kinds else None
        self._dense_strides: list[tuple[int, ...]] = []
        self._sizes: list[int] = []
        self._contiguous: Sequence[Tensors] = ()
        """State that was found to fit parameters of these sizes, with nothing but contiguous tensors."""
        is_left_as_it_is = self._is_sgd and any(map(is_half_on_a_cpu, self.parameters))
        is_of_one_kind = len(kinds) == 1 and type(self.parameters[0]) in _KINDS
        self.is_plain = is_of_one_kind and not is_left_as_it_is and self._has_all(settings)

    def _has_all(self, settings: Mapping[str, Any]) -> bool:
        tensors = [state.get(name) for state in self._states for name in self._names(settings) if name != "step"]
        return all(isinstance(tensor, torch.Tensor) and tensor.dtype is self._dtype for tensor in tensors)

    def is_of(self, parameters: Tensors) -> bool:
        return are_same(parameters, self.parameters) and set(map(_dtype_of, parameters)) == {self._dtype}

    def kept(self, settings: Mapping[str, Any]) -> list[list[Any]]:
        """What each name of the state stands for; KeyError where somebody has taken it away."""
        return [list(map(itemgetter(name), self._states)) for name in self._names(settings)]

    def fits(self, gradients: Tensors, kept: Sequence[Tensors]) -> bool:
        """Whether all are there, as large as the parameters, of their kind, and lie in memory as they do."""
        if any(map(_is_none, gradients)) or set(map(_dtype_of, gradients)) != {self._dtype}:
            return False
        sizes = list(map(torch.Tensor.numel, self.parameters))
        are_contiguous = _are_contiguous(self.parameters) and _are_contiguous(gradients)
        if are_contiguous and sizes == self._sizes and are_all_same(kept, self._contiguous):
            # the same state that has been looked at, and torch lets nobody assign a gradient of another size
            return True
        self._sizes, self._contiguous = [], ()
        if any(any(map(_is_none, tensors)) for tensors in kept):
            return False
        # but for the count of steps, a number each
        state = kept[:2]
        if any(list(map(torch.Tensor.numel, tensors)) != sizes for tensors in (gradients, *state)):
            return False
        if any(set(map(_dtype_of, tensors)) != {self._dtype} for tensors in state):
            return False
        if are_contiguous and all(map(_are_contiguous, state)):
            self._sizes, self._contiguous = sizes, kept
            return True
        if any(gradient.layout is not torch.strided for gradient in gradients):
            # a sparse one of a single element would seem to lie alike
            return False
        strides = list(map(torch.Tensor.stride, self.parameters))
        if strides != self._dense_strides:
            # they were laid out anew
            self._dense_strides = strides if all(map(is_dense, self.parameters)) else []
        return bool(self._dense_strides) and all(map(self._lie_like_parameters, (gradients, *state)))

    def _lie_like_parameters(self, tensors: Tensors) -> bool:
        are_alike = list(map(torch.Tensor.stride, tensors)) == self._dense_strides
        return are_alike or all(map(lie_alike, tensors, self.parameters))

    def update(
        self, settings: Mapping[str, Any], gradients: Tensors, kept: Sequence[Tensors], *, divisor: Any = None
    ) -> None:
        """As torch's `_fused_sgd` and `_fused_adam` do; `divisor`: a tensor that gradients are divided by before."""
        if self._is_sgd:
            torch._fused_sgd_(
                self.parameters, gradients, kept[0] if kept else [], lr=settings["lr"], momentum=settings["momentum"],
                weight_decay=settings["weight_decay"], dampening=settings["dampening"], nesterov=settings["nesterov"],
                maximize=settings["maximize"], is_first_step=False, grad_scale=divisor,
            )  # fmt: skip
            return
        averages, squares, steps = kept
        torch._foreach_add_(steps, 1)
        decouples = settings.get("decoupled_weight_decay", self._is_adamw)
        kernel: Callable[..., None] = torch._fused_adamw_ if decouples else torch._fused_adam_
        beta1, beta2 = settings["betas"]
        kernel(
            self.parameters, gradients, averages, squares, [], steps, lr=settings["lr"], beta1=beta1, beta2=beta2,
            weight_decay=settings["weight_decay"], eps=settings["eps"], amsgrad=False, maximize=settings["maximize"],
            grad_scale=divisor,
        )  # fmt: skip

    def _names(self, settings: Mapping[str, Any]) -> tuple[str, ...]:
        if self._is_sgd:
            return ("momentum_buffer",) if settings["momentum"] else ()
        return ("exp_avg", "exp_avg_sq", "step")


def are_plain(settings: Mapping[str, Any]) -> bool:
    """Whether they are numbers, and ask for the fused kernel."""
    if not settings.get("fused") or any(map(settings.get, _REFUSED)):
        return False
    numbers = [*[settings[name] for name in _NUMBERS if name in settings], *settings.get("betas", ())]
    # most often of these very types, which C can say
    return _PLAIN_NUMBERS.issuperset(map(type, numbers)) or all(isinstance(number, float | int) for number in numbers)


def are_same(some: Any, others: Any) -> bool:
    return len(some) == len(others) and all(map(is_, some, others))


def are_all_same(some: Sequence[Tensors], others: Sequence[Tensors]) -> bool:
    return len(some) == len(others) and all(map(are_same, some, others))


def _are_contiguous(tensors: Tensors) -> bool:
    return all(map(torch.Tensor.is_contiguous, tensors))
