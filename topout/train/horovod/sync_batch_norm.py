"""Batch normalisation over the batches of all ranks, on CPU and GPU.

Not faster than `torch.nn.SyncBatchNorm`, which has kernels of its own but takes GPU tensors only.
"""

from typing import Any

import torch
import torch.distributed.nn.functional as differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from topout.train.horovod import world
from topout.train.horovod.process_sets import ProcessSet, global_process_set, group_of


class SyncBatchNorm(_BatchNorm):  # type: ignore[misc]
    """Statistics over all ranks while training; running ones in evaluation, as ever."""

    def __init__(  # noqa: PLR0917 (Horovod's signature)
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
        track_running_stats: bool = True, process_set: ProcessSet = global_process_set,
    ) -> None:  # fmt: skip
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self._process_set = process_set

    def _check_input_dim(self, value: Any) -> None:
        if value.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {value.dim()}D input)")

    def forward(self, value: Any) -> Any:
        self._check_input_dim(value)
        uses_batch = self.training or not self.track_running_stats
        if not uses_batch or world.size() == 1:
            return super().forward(value)
        # in float32 at least: sums over half-size numbers overflow
        given = value.dtype
        value = value.to(torch.promote_types(given, torch.float32))
        mean, variance, count = self._statistics(value)
        if self.training and self.track_running_stats:
            self._follow(mean.detach(), variance.detach() * (count / (count - 1).clamp(min=1)))
        shape = [1, -1] + [1] * (value.dim() - 2)
        normal = (value - mean.view(shape)) * torch.rsqrt(variance + self.eps).view(shape)
        if self.weight is not None:
            normal = normal * self.weight.view(shape) + self.bias.view(shape)
        return normal.to(given)

    def _statistics(self, value: Any) -> tuple[Any, Any, Any]:
        """Two passes, since a mean of squares loses what a large mean hides."""
        group = group_of(self._process_set)
        dims = [0, *range(2, value.dim())]
        num_here = value.new_tensor([value.numel() / value.shape[1]])
        sums = differentiable.all_reduce(torch.cat([value.sum(dims), num_here]), group=group)
        count = sums[-1].detach()
        mean = sums[:-1] / count
        shape = [1, -1] + [1] * (value.dim() - 2)
        squares = differentiable.all_reduce((value - mean.view(shape)).square().sum(dims), group=group)
        return mean, squares / count, count

    def _follow(self, mean: Any, variance: Any) -> None:
        self.num_batches_tracked.add_(1)
        share = self.momentum if self.momentum is not None else 1.0 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(variance.to(self.running_var.dtype), share)
