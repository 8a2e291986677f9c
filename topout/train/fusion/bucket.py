"""One group of gradients in one flat buffer, reduced by one collective.

A gradient that already lies in the buffer is not copied; after the reduction the parameters' gradients are views of it.
Behind the gradients lie a few marks, which travel for nothing: who has a gradient at all, and who has joined.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

_UNUSED = max(map(sys.getrefcount, [torch.empty(0, device="cpu")]))
"""References to a tensor that only a list holds, as `map` sees them."""


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """How gradients become one: `before` and `after` scale them around the reduction.

    An average costs no scaling here, and averaging again what is already averaged changes nothing.
    """

    op: Any = dist.ReduceOp.AVG
    before: float = 1.0
    after: float = 1.0
    wire_dtype: torch.dtype | None = None
    """What travels, where it is not the gradients' own type."""

    def of_a_sum(self, group: Any) -> float:
        """By what a sum over ranks is multiplied to give the same."""
        share = 1.0 / dist.get_world_size(group) if self.op == dist.ReduceOp.AVG else 1.0
        return self.before * self.after * share


def averaging(group: Any) -> Reduction:
    """The cheapest way to an average: Gloo would need a sweep of its own, scaling on the way in costs nothing."""
    if "nccl" in str(dist.get_backend_config(group)):
        return Reduction()
    return Reduction(op=dist.ReduceOp.SUM, before=1.0 / dist.get_world_size(group))


class Bucket:
    """Filled by one thread at a time; issued once all have come or are known not to."""

    def __init__(self, parameters: Sequence[Any], reduction: Reduction, group: Any, num_extra_marks: int = 0) -> None:
        self.parameters = list(parameters)
        self._reduction = reduction
        self._group = group
        self._num_elements = sum(parameter.numel() for parameter in parameters)
        self._num_marks = len(self.parameters) + num_extra_marks
        self._filled = [False] * len(self.parameters)
        self._num_filled = 0
        self._work: Any = None
        self._allocate()

    def _allocate(self) -> None:
        first, wanted = self.parameters[0], self._reduction.wire_dtype
        wire_dtype = wanted if wanted is not None and first.dtype.is_floating_point else first.dtype
        self._wire = torch.zeros(self._num_elements + self._num_marks, dtype=wire_dtype, device=first.device)
        self._marks = self._wire[self._num_elements :]
        self._is_cast = wire_dtype != first.dtype
        self._result = self._wire.new_empty(self._num_elements, dtype=first.dtype) if self._is_cast else None
        self._wire_views = _views(self._wire, self.parameters)
        self.views = self._wire_views if self._result is None else _views(self._result, self.parameters)

    def _begin(self) -> None:
        """Leaves its memory to gradients that a script keeps, as with `[p.grad for p in …]` before `zero_grad()`."""
        counts = list(map(sys.getrefcount, self.views))
        if max(counts) <= _UNUSED:
            return
        slots = zip(counts, self.views, self.parameters, strict=True)
        if any(count > _UNUSED and parameter.grad is not view for count, view, parameter in slots):
            self._allocate()

    @property
    def num_bytes(self) -> int:
        return int(self._num_elements * self._wire.element_size())

    @property
    def is_full(self) -> bool:
        return self._num_filled == len(self._filled)

    @property
    def is_issued(self) -> bool:
        return self._work is not None

    def fill(self, place: int, gradient: Any) -> None:
        """Scaled on the way into the buffer, while it is still in the cache; once, since it may lie there already."""
        if not self._num_filled:
            self._begin()
        into = self._wire_views[place]
        gradient = gradient.detach()
        if gradient.is_sparse:
            gradient = gradient.to_dense()
        before = self._reduction.before
        is_there = gradient.data_ptr() == into.data_ptr() and not self._is_cast
        if is_there and before != 1.0:
            into.mul_(before)
        elif not is_there and before != 1.0:
            torch.mul(gradient, before, out=into)
        elif not is_there:
            into.copy_(gradient)
        if not self._filled[place]:
            self._filled[place] = True
            self._num_filled += 1

    def fill_rest(self) -> list[int]:
        """Takes what gradients there are, and zeros for those that did not come; the places of the latter."""
        missing = []
        if not self._num_filled:
            self._begin()
        for place, is_filled in enumerate(self._filled):
            if is_filled:
                continue
            gradient = self.parameters[place].grad
            if gradient is None:
                self._wire_views[place].zero_()
                missing.append(place)
            else:
                self.fill(place, gradient)
        return missing

    def clear(self) -> None:
        """All zeros, for a rank that has no more gradients."""
        self._begin()
        self._wire.zero_()

    def refill(self) -> None:
        """Begins again with gradients that changed since; what is in flight must not be written to."""
        self.wait()
        self._filled = [False] * len(self._filled)
        self._num_filled = 0

    def issue(self, missing: Sequence[int] = (), extra_mark: tuple[int, int] | None = None) -> None:
        """`missing`: places without a gradient here; `extra_mark`: number of an extra mark and what it becomes."""
        self._marks.zero_()
        self._marks[: len(self._filled)] = 1
        for place in missing:
            self._marks[place] = 0
        if extra_mark is not None:
            self._marks[len(self._filled) + extra_mark[0]] = extra_mark[1]
        self._work = dist.all_reduce(self._wire, op=self._reduction.op, group=self._group, async_op=True)

    def wait(self) -> None:
        if self._work is not None:
            self._work.wait()
            self._work = None

    def finish(self) -> None:
        """Waits and scales; every gradient is then in `views`."""
        self.wait()
        after = self._reduction.after
        if self._result is not None:
            torch.mul(self._wire[: self._num_elements], after, out=self._result)
        elif after != 1.0:
            self._wire[: self._num_elements].mul_(after)
        self._filled = [False] * len(self._filled)
        self._num_filled = 0

    def exists_somewhere(self, place: int) -> bool:
        """Whether any rank had this gradient; makes a GPU wait, so only for those that are missing here."""
        return bool(self._marks[place] != 0)

    def extra_marks(self) -> list[int]:
        share = dist.get_world_size(self._group) if self._reduction.op == dist.ReduceOp.AVG else 1
        return [round(mark * share) for mark in self._marks[len(self._filled) :].tolist()]


def _views(flat: Any, parameters: Sequence[Any]) -> list[Any]:
    """One view a parameter, in its own memory layout, so that a channels_last gradient stays one."""
    views: list[Any] = []
    start = 0
    for parameter in parameters:
        stop = start + parameter.numel()
        if torch._debug_has_internal_overlap(parameter) == 0 and _is_dense(parameter):
            views.append(flat.as_strided(parameter.size(), parameter.stride(), start))
        else:
            views.append(flat[start:stop].view(parameter.shape))
        start = stop
    return views


def _is_dense(parameter: Any) -> bool:
    """Whether its elements fill one piece of memory without holes, in whatever order."""
    expected = 1
    for stride, size in sorted(zip(parameter.stride(), parameter.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True
