"""Gradients through a compression of the user's own: one collective each, once backward is over.

Not for `Compression.none` and `fp16`, which are reduced in groups while backward runs.
"""

from collections.abc import Sequence
from typing import Any

import torch

from topout.train.fusion.bucket import Reduction
from topout.train.fusion.gradients import TOO_MANY_PASSES
from topout.train.horovod.operations import begun
from topout.train.horovod.process_sets import ProcessSet


class CompressedGradients:
    """What `FusedGradients` offers, without the fusion."""

    def __init__(
        self, named: Sequence[tuple[str, Any]], compression: Any, reduction: Reduction, process_set: ProcessSet,
        passes: int,
    ) -> None:  # fmt: skip
        self._parameters = [parameter for _, parameter in named]
        self._compression = compression
        self._reduction = reduction
        self.group = process_set.gradient_group
        self._passes = passes
        self._counts = [0] * len(self._parameters)
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._hook(number))
            for number, parameter in enumerate(self._parameters)
        ]

    @property
    def parameters(self) -> list[Any]:
        return self._parameters

    @property
    def has_pending(self) -> bool:
        return any(self._counts)

    def set_passes(self, passes: int) -> None:
        self._passes = passes

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def forget(self) -> None:
        self._counts[:] = [0] * len(self._counts)

    def _hook(self, number: int) -> Any:
        def came(_parameter: Any) -> None:
            self._counts[number] += 1
            if self._counts[number] > self._passes:
                raise AssertionError(TOO_MANY_PASSES)

        return came

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def synchronize(self) -> None:
        before, after = self._reduction.before, self._reduction.after
        pending: list[tuple[Any, Any, Any, Any]] = []
        for parameter in self._parameters:
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            travelling, context = self._compression.compress(gradient)
            travelling = travelling.contiguous()
            if before != 1.0:
                travelling.mul_(before)
            work = begun(torch.distributed.all_reduce, travelling, op=self._reduction.op, group=self.group)
            pending.append((parameter, work, travelling, context))
        for parameter, work, travelling, context in pending:
            work.wait()
            reduced = self._compression.decompress(travelling, context)
            parameter.grad = reduced.mul(after) if after != 1.0 else reduced
        self.forget()
