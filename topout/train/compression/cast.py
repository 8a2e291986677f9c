"""Gradients rounded to two bytes for one all-reduce: what `bf16` and `fp16` have in common.

One collective, on DDP's own group, so no thread and no state. The average is taken before rounding: a sum over ranks
that fits no fp16 could otherwise overflow though its average fits. What does not fit becomes infinite, and infinite
stays infinite, so that a GradScaler sees it and lowers its scale.
"""

import time

import torch
import torch.distributed as dist
from torch import Tensor

from topout.train.compression.compressor import Compressor, completed, elapsed_ns
from topout.train.compression.traffic import all_reduce_bytes
from topout.train.place import Place


class Cast(Compressor):
    """Buckets of two bytes a value, and of integers, travel as they are."""

    dtype: torch.dtype

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._wires: dict[int, Tensor] = {}

    def hook(self, state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        if self.place.world_size == 1:
            return completed(buffer)
        begun_ns = time.perf_counter_ns()
        self.num_steps += bucket.is_last()
        buffer.div_(self.place.world_size)
        wire = self._wire(bucket.index(), buffer)
        if bucket.is_last():
            self._wires = {index: kept for index, kept in self._wires.items() if index <= bucket.index()}
        if wire is not buffer:
            wire.copy_(buffer)
        self.traffic.add(
            sent=all_reduce_bytes(wire.nbytes, self.place.world_size),
            plain=all_reduce_bytes(buffer.nbytes, self.place.world_size),
        )
        reduced = dist.all_reduce(wire, group=self.place.group, async_op=True).get_future()

        def restore(done: torch.futures.Future[list[Tensor]]) -> Tensor:
            done.value()  # raises where the collective failed
            if wire is not buffer:
                buffer.copy_(wire)
            self.traffic.add(busy_ns=elapsed_ns(begun_ns))
            return buffer

        return reduced.then(restore)

    def _wire(self, index: int, buffer: Tensor) -> Tensor:
        """The memory that bucket `index` is rounded into, kept from step to step."""
        if not buffer.is_floating_point() or buffer.itemsize <= 2:
            return buffer
        kept = self._wires.get(index)
        if kept is None or kept.numel() != buffer.numel() or kept.device != buffer.device:
            kept = self._wires[index] = torch.empty_like(buffer, dtype=self.dtype)
        return kept
