"""Gradients averaged over the rows of the mesh, where nothing else does it: dp without fsdp.

Flat buckets, as DDP has them. Without a pipeline a bucket leaves while backward still runs; under one, gradients are
sums over microbatches, and all leave after the last. Tensors of a split layer are averaged as the local parts they
are. Not for sharded parameters: FSDP2 averages its own.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from topout.train.place import Place

BUCKET_BYTES = 25 * 2**20


class Averaging:
    """Over the ranks of `rows`. `arm()` before the last backward of a step, `finish()` after it, on all ranks."""

    def __init__(self, parameters: Sequence[Any], rows: Place) -> None:
        self._rows = rows
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        self._buckets = _buckets(trained)
        self._bucket_of = {id(p): number for number, bucket in enumerate(self._buckets) for p in bucket}
        self._missing: list[int] = []
        self._flying: list[tuple[Any, Any]] = []
        self._is_armed = False
        for parameter in trained:
            parameter.register_post_accumulate_grad_hook(self._arrived)

    def arm(self) -> None:
        """Buckets leave as soon as they are full, always in the same order."""
        self._missing = [len(bucket) for bucket in self._buckets]
        self._flying, self._is_armed = [], True

    def _arrived(self, parameter: Any) -> None:
        if not self._is_armed:
            return
        self._missing[self._bucket_of[id(parameter)]] -= 1
        while len(self._flying) < len(self._buckets) and self._missing[len(self._flying)] == 0:
            self._send(self._buckets[len(self._flying)])

    def finish(self) -> None:
        """Every gradient is the mean over rows; one that no row has stays None."""
        if not self._is_armed:
            self._flying = []
        self._is_armed = False
        given = [parameter.grad is not None for bucket in self._buckets for parameter in bucket]
        while len(self._flying) < len(self._buckets):
            self._send(self._buckets[len(self._flying)])
        exists = torch.tensor(given, dtype=torch.uint8, device=self._rows.device)
        dist.all_reduce(exists, op=dist.ReduceOp.MAX, group=self._rows.group)
        for bucket, (work, flat) in zip(self._buckets, self._flying, strict=True):
            work.wait()
            self._unpack(bucket, flat)
        self._flying = []
        if not all(given):
            parameters = [parameter for bucket in self._buckets for parameter in bucket]
            for parameter, is_there in zip(parameters, exists.tolist(), strict=True):
                if not is_there:
                    parameter.grad = None

    def _send(self, bucket: list[Any]) -> None:
        flat = torch.cat([_local(p.grad if p.grad is not None else torch.zeros_like(p)).flatten() for p in bucket])
        flat /= self._rows.world_size
        self._flying.append((dist.all_reduce(flat, group=self._rows.group, async_op=True), flat))

    def _unpack(self, bucket: list[Any], flat: torch.Tensor) -> None:
        at = 0
        for parameter in bucket:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            local = _local(parameter.grad)
            local.copy_(flat[at : at + local.numel()].view_as(local))
            at += local.numel()


def _local(tensor: Any) -> torch.Tensor:
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor.detach()


def _buckets(parameters: Sequence[Any]) -> list[list[Any]]:
    """In the order in which backward comes to them, about; one type each."""
    buckets: list[list[Any]] = []
    room: dict[Any, int] = {}
    last: dict[Any, list[Any]] = {}
    for parameter in reversed(parameters):
        size = _local(parameter).numel() * parameter.element_size()
        if room.get(parameter.dtype, 0) < size:
            last[parameter.dtype] = []
            buckets.append(last[parameter.dtype])
            room[parameter.dtype] = BUCKET_BYTES
        last[parameter.dtype].append(parameter)
        room[parameter.dtype] -= size
    return buckets
