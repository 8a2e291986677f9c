"""Whether gradients were changed after they were copied on their way: clipped, unscaled, set to None before the step.

Told by torch's version counters when backward is over, not at each copy: gradients of one kernel (cuDNN's LSTM) and
views of one buffer share a counter, which moves while backward adds to the others. Gradient scalers move none, nor does
what goes through `.data`, so in the first steps a few values are compared too; not of gradients that lie in a buffer,
which the reduction writes to meanwhile.
"""

import heapq
from typing import Any

import torch

_NUM_STEPS_COMPARED = 3
"""By values, for which a GPU is waited for."""
_NUM_COMPARED, _MOST_ELEMENTS = 8, 1 << 20


class LateChanges:
    """Of one step; costs two short looks at each gradient."""

    def __init__(self) -> None:
        self._is_awaited = False
        self._fresh: list[Any] = []
        """Parameters whose gradients this backward pass copied."""
        self._in_buffers: list[Any] = []
        """Those that needed no copy."""
        self._seen: list[tuple[Any, tuple[int, int]]] = []
        self._seen_in_buffers: list[tuple[Any, tuple[int, int]]] = []
        self._values: list[tuple[Any, Any]] = []
        self._num_steps_to_compare = _NUM_STEPS_COMPARED

    def gradient_came(self) -> None:
        if not self._is_awaited:
            self._is_awaited = True
            torch.autograd.Variable._execution_engine.queue_callback(self._look)

    def copied(self, parameter: Any, *, is_in_buffer: bool) -> None:
        (self._in_buffers if is_in_buffer else self._fresh).append(parameter)

    def _look(self) -> None:
        """Backward is over. A gradient of an earlier pass is not looked at again: it may have been changed since."""
        self._is_awaited = False
        self._seen += [(parameter, _state(parameter.grad)) for parameter in self._fresh]
        if self._num_steps_to_compare:
            self._values += [(gradient, gradient.detach().clone()) for gradient in _smallest(self._fresh)]
        self._fresh.clear()
        # a later pass moves these by what it adds to their neighbours
        self._seen_in_buffers = [(parameter, _state(parameter.grad)) for parameter in self._in_buffers]

    def are_there(self) -> bool:
        has_moved = any(_state(parameter.grad) != state for parameter, state in self._seen + self._seen_in_buffers)
        # what is no number equals nothing, itself included
        return has_moved or any(bool(((now != was) & ~was.isnan()).any()) for now, was in self._values)

    def begin_step(self) -> None:
        self._is_awaited = False
        self._num_steps_to_compare -= bool(self._values)
        for held in (self._fresh, self._in_buffers, self._seen, self._seen_in_buffers, self._values):
            held.clear()


def _state(gradient: Any) -> tuple[int, int]:
    return id(gradient), -1 if gradient is None else gradient._version


def _smallest(parameters: list[Any]) -> list[Any]:
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    dense = [one for one in gradients if not one.is_sparse and one.numel() <= _MOST_ELEMENTS]
    return heapq.nsmallest(_NUM_COMPARED, dense, key=torch.Tensor.numel)
