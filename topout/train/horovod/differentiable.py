"""The same collectives, finished at once, with gradients through them.

Backward of each is what Horovod's is, averages included, so that a script's learning rate keeps its meaning. Shapes are
compared first: a rank that passes another shape is an error on all ranks, not a hang.
"""

# ruff: noqa: PLR0917 (signatures are Horovod's, which scripts call by position)
from collections.abc import Sequence
from typing import Any

import torch

from topout.train.fusion.agreement import gather_numbers
from topout.train.horovod import operations
from topout.train.horovod.compression import Compression
from topout.train.horovod.operations import Average, Sum, same_root, same_shape, synchronize
from topout.train.horovod.process_sets import ProcessSet, global_process_set, group_of
from topout.train.horovod.world import rank


class _Allreduce(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, op: int, factors: tuple[float, float], process_set: Any, *given: Any) -> Any:
        ctx.asked = (op, factors, process_set)
        handle = operations.grouped_allreduce_async(
            given, op=op, prescale_factor=factors[0], postscale_factor=factors[1], process_set=process_set
        )
        return tuple(synchronize(handle))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return (None, None, None, *_Allreduce.apply(*ctx.asked, *gradients))


def _reduced(tensors: Sequence[Any], op: int, factors: tuple[float, float], process_set: Any) -> tuple[Any, ...]:
    found: tuple[Any, ...] = _Allreduce.apply(op, factors, process_set, *tensors)
    return found


def allreduce(
    tensor: Any, average: bool | None = None, name: str | None = None, compression: Any = Compression.none,
    op: int | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:  # fmt: skip
    return grouped_allreduce(
        [tensor], average, name, compression, op, prescale_factor, postscale_factor, process_set
    )[0]  # fmt: skip


def grouped_allreduce(
    tensors: Sequence[Any], average: bool | None = None, name: str | None = None, compression: Any = Compression.none,
    op: int | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:  # fmt: skip
    asked = operations.chosen_op(op, average)
    for tensor in tensors:
        same_shape(tensor, "allreduce", group_of(process_set))
    compressed, contexts = zip(*(compression.compress(tensor) for tensor in tensors), strict=True)
    reduced = _reduced(compressed, asked, (prescale_factor, postscale_factor), process_set)
    return [compression.decompress(tensor, context) for tensor, context in zip(reduced, contexts, strict=True)]


def allreduce_(
    tensor: Any, average: bool | None = None, name: str | None = None, op: int | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> Any:  # fmt: skip
    asked = operations.chosen_op(op, average)
    same_shape(tensor, "allreduce_", group_of(process_set))
    handle = operations.allreduce_async_(tensor, None, name, asked, prescale_factor, postscale_factor, process_set)
    return synchronize(handle)


def grouped_allreduce_(
    tensors: Sequence[Any], average: bool | None = None, name: str | None = None, op: int | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> Any:  # fmt: skip
    asked = operations.chosen_op(op, average)
    factors = (prescale_factor, postscale_factor)
    return synchronize(operations.grouped_allreduce_async_(tensors, None, name, asked, *factors, process_set))


class _Allgather(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, tensor: Any, process_set: Any) -> Any:
        ctx.process_set, ctx.num_rows, ctx.is_scalar = process_set, (tensor.shape or (1,))[0], tensor.dim() == 0
        return synchronize(operations.allgather_async(tensor, process_set=process_set))

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        reduced = _reduced([gradient], Average, (1.0, 1.0), ctx.process_set)[0]
        counts = gather_numbers([ctx.num_rows], group_of(ctx.process_set))
        start = sum(row[0] for row in counts[: ctx.process_set.rank()])
        mine = reduced[start : start + ctx.num_rows]
        return mine.reshape(()) if ctx.is_scalar else mine, None


def allgather(tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    return _Allgather.apply(tensor, process_set)


def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    return [allgather(tensor, name, process_set) for tensor in tensors]


class _Broadcast(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, tensor: Any, root_rank: int, process_set: Any) -> Any:
        ctx.root_rank, ctx.process_set = root_rank, process_set
        return synchronize(operations.broadcast_async(tensor, root_rank, process_set=process_set))

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        reduced = _reduced([gradient], Average, (1.0, 1.0), ctx.process_set)[0]
        return (reduced if rank() == ctx.root_rank else torch.zeros_like(reduced)), None, None


def broadcast(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    same_root(root_rank, "broadcast", group_of(process_set))
    same_shape(tensor, "broadcast", group_of(process_set))
    return _Broadcast.apply(tensor, root_rank, process_set)


def broadcast_(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    same_root(root_rank, "broadcast_", group_of(process_set))
    same_shape(tensor, "broadcast_", group_of(process_set))
    return synchronize(operations.broadcast_async_(tensor, root_rank, name, process_set))


class _Alltoall(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, tensor: Any, splits: Any, process_set: Any) -> Any:
        output, received = synchronize(operations.alltoall_async(tensor, splits, process_set=process_set))
        ctx.received, ctx.process_set = received, process_set
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, gradient: Any, _received: Any) -> Any:
        return _Alltoall.apply(gradient, ctx.received, ctx.process_set)[0], None, None


def alltoall(
    tensor: Any, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Without `splits` the received rows; with them also how many came from each rank."""
    output, received = _Alltoall.apply(tensor, splits, process_set)
    return output if splits is None else (output, received)


class _Reducescatter(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, tensor: Any, op: int, factors: tuple[float, float], process_set: Any) -> Any:
        ctx.op, ctx.factors, ctx.process_set = op, factors, process_set
        return synchronize(operations.reducescatter_async(tensor, None, op, process_set, *factors))

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        scale = ctx.factors[0] * ctx.factors[1] * (len(ctx.process_set.ranks) if ctx.op == Sum else 1)
        return _Allgather.apply(gradient * scale, ctx.process_set), None, None, None


def reducescatter(
    tensor: Any, name: str | None = None, compression: Any = Compression.none, op: int = Average,
    process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
) -> Any:  # fmt: skip
    same_shape(tensor, "reducescatter", group_of(process_set))
    compressed, context = compression.compress(tensor)
    reduced = _Reducescatter.apply(compressed, op, (prescale_factor, postscale_factor), process_set)
    return compression.decompress(reduced, context)


def grouped_reducescatter(
    tensors: Sequence[Any], name: str | None = None, compression: Any = Compression.none, op: int = Average,
    process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
) -> list[Any]:  # fmt: skip
    return [
        reducescatter(tensor, name, compression, op, process_set, prescale_factor, postscale_factor)
        for tensor in tensors
    ]
