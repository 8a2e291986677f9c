"""Collectives as Horovod names them, with handles: each starts at once and is finished by `synchronize`.

Horovod matches operations by name; these are matched by their order, which must be the same on all ranks.
"""

# ruff: noqa: PLR0917 (signatures are Horovod's, which scripts call by position)
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from topout.schema.errors import TopoutError
from topout.train.fusion.agreement import gather_numbers
from topout.train.horovod.process_sets import ProcessSet, global_process_set, group_of
from topout.train.horovod.world import HorovodInternalError

Average, Sum, Adasum, Min, Max, Product = range(6)

_REDUCTIONS = {
    Average: dist.ReduceOp.SUM, Sum: dist.ReduceOp.SUM, Min: dist.ReduceOp.MIN, Max: dist.ReduceOp.MAX,
    Product: dist.ReduceOp.PRODUCT,
}  # fmt: skip
_CARRIED = {torch.int16: torch.int32}
"""What travels in place of a type that neither Gloo nor NCCL carries."""
_pending: dict[int, tuple[list[Any], Callable[[], Any]]] = {}
"""Handle -> works in flight, and what makes the result of them."""
_last_handle = 0


def chosen_op(op: int | None, average: bool | None) -> int:
    """`average` is what scripts of before 0.19 pass."""
    if op is not None and average is not None:
        raise ValueError("The op parameter supersedes average. Please provide only one of them.")
    if op is None:
        return Sum if average is False else Average
    if op == Adasum:
        raise no_adasum()
    if op not in _REDUCTIONS:
        raise ValueError(f"{op} is not a reduction operation of Horovod.")
    return op


def no_adasum() -> TopoutError:
    return TopoutError(
        "op=hvd.Adasum is not served.",
        why="topout writes no collective of its own, and torch.distributed has no Adasum",
        do="use op=hvd.Average and scale the learning rate with hvd.size()",
    )


def started(works: list[Any], finish: Callable[[], Any]) -> int:
    global _last_handle
    _last_handle += 1
    _pending[_last_handle] = (works, finish)
    return _last_handle


def _together(handles: Sequence[int]) -> int:
    works = [work for handle in handles for work in _pending[handle][0]]
    return started(works, lambda: [synchronize(handle) for handle in handles])


def poll(handle: int) -> bool:
    """Whether `synchronize` would return at once."""
    return all(work.is_completed() for work in _pending[handle][0]) if handle in _pending else True


def synchronize(handle: Any) -> Any:
    """Waits, and returns the result; a handle that was finished before gives None."""
    if callable(handle):
        return handle()
    works, finish = _pending.pop(handle, (None, None))
    if works is None or finish is None:
        return None
    try:
        for work in works:
            work.wait()
    except RuntimeError as error:
        raise HorovodInternalError(str(error)) from error
    return finish()


def begun(collective: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    try:
        return collective(*args, **kwargs, async_op=True)
    except RuntimeError as error:
        raise HorovodInternalError(str(error)) from error


def carried(tensor: Any) -> Any:
    return tensor.to(_CARRIED.get(tensor.dtype, tensor.dtype))


def scaled_(tensor: Any, factor: float) -> Any:
    """In place; whole numbers are scaled as Horovod does, through floating point."""
    if factor == 1.0:
        return tensor
    if tensor.dtype.is_floating_point:
        return tensor.mul_(factor)
    return tensor.copy_((tensor.double() * factor).to(tensor.dtype))


def reduce_async(
    tensors: Sequence[Any],
    into: Sequence[Any],
    op: int,
    factors: tuple[float, float],
    process_set: ProcessSet,
) -> tuple[list[Any], Callable[[], None]]:
    """Tensors of one type and device travel as one; the results come `into` where the works are done."""
    group = group_of(process_set)
    before, after = factors
    if op == Average:
        after /= len(process_set.ranks)
    kinds: dict[tuple[Any, Any], list[int]] = {}
    for number, tensor in enumerate(tensors):
        kinds.setdefault((tensor.dtype, tensor.device), []).append(number)
    pending: list[Any] = []
    for members in kinds.values():
        flat = carried(torch.cat([tensors[number].detach().reshape(-1) for number in members]))
        scaled_(flat, before)
        pending.append((begun(dist.all_reduce, flat, op=_REDUCTIONS[op], group=group), flat, members))

    def finish() -> None:
        for _, flat, members in pending:
            scaled_(flat, after)
            parts = flat.split([into[number].numel() for number in members])
            for number, part in zip(members, parts, strict=True):
                into[number].copy_(part.view(into[number].shape))

    return [work for work, _, _ in pending], finish


def allreduce_async(
    tensor: Any, average: bool | None = None, name: str | None = None, op: int | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> int:  # fmt: skip
    into = torch.empty_like(tensor, requires_grad=False)
    return _allreduce([tensor], [into], average, op, (prescale_factor, postscale_factor), process_set, is_single=True)


def allreduce_async_(
    tensor: Any, average: bool | None = None, name: str | None = None, op: int | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> int:  # fmt: skip
    return _allreduce([tensor], [tensor], average, op, (prescale_factor, postscale_factor), process_set, is_single=True)


def grouped_allreduce_async(
    tensors: Sequence[Any], average: bool | None = None, name: str | None = None, op: int | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> int:  # fmt: skip
    into = [torch.empty_like(tensor, requires_grad=False) for tensor in tensors]
    return _allreduce(tensors, into, average, op, (prescale_factor, postscale_factor), process_set)


def grouped_allreduce_async_(
    tensors: Sequence[Any], average: bool | None = None, name: str | None = None, op: int | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> int:  # fmt: skip
    return _allreduce(tensors, tensors, average, op, (prescale_factor, postscale_factor), process_set)


def _allreduce(
    tensors: Sequence[Any], into: Sequence[Any], average: bool | None, op: int | None, factors: tuple[float, float],
    process_set: ProcessSet, *, is_single: bool = False,
) -> int:  # fmt: skip
    works, fill = reduce_async(tensors, into, chosen_op(op, average), factors, process_set)

    def finish() -> Any:
        with torch.no_grad():
            fill()
        return into[0] if is_single else list(into)

    return started(works, finish)


def allgather_async(tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """First dimensions may differ; padded on the way, since not every backend sends unequal parts."""
    group = group_of(process_set)
    tensor = tensor.detach()
    if tensor.dim() == 0:
        tensor = tensor.reshape(1)
    counts = [shape[0] for shape in same_beyond_first(tensor, "allgather", group)]
    given, tensor = tensor.dtype, carried(tensor)
    padded = tensor.contiguous()
    if tensor.shape[0] < max(counts):
        padded = tensor.new_zeros((max(counts), *tensor.shape[1:]))
        padded[: tensor.shape[0]] = tensor
    parts = [torch.empty_like(padded) for _ in counts]
    work = begun(dist.all_gather, parts, padded, group=group)
    return started(
        [work], lambda: torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)]).to(given)
    )


def grouped_allgather_async(
    tensors: Sequence[Any], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    handles = [allgather_async(tensor, name, process_set) for tensor in tensors]
    return _together(handles)


def broadcast_async(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    return broadcast_async_(tensor.detach().clone(), root_rank, name, process_set)


def broadcast_async_(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    group = group_of(process_set)
    travelling = carried(tensor.detach())
    if not travelling.is_contiguous():
        travelling = travelling.contiguous()
    work = begun(dist.broadcast, travelling, root_rank, group=group)

    def finish() -> Any:
        if travelling.data_ptr() != tensor.data_ptr():
            with torch.no_grad():
                tensor.copy_(travelling)
        return tensor

    return started([work], finish)


def alltoall_async(
    tensor: Any, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Finished, it gives what was received, and how many rows of it came from each rank."""
    group = group_of(process_set)
    tensor = tensor.detach().contiguous()
    num_ranks = len(process_set.ranks)
    same_beyond_first(tensor, "alltoall", group)
    if splits is None:
        share, rest = divmod(tensor.shape[0], num_ranks)
        sent = [share] * num_ranks if rest == 0 else [-1] * num_ranks
    else:
        sent = [int(number) for number in splits]
    # those of a wrong length are told apart by the number that goes first
    rows = gather_numbers([len(sent), sum(sent), tensor.shape[0], *(sent + [0] * num_ranks)[:num_ranks]], group)
    if any(length != num_ranks or total != num_rows for length, total, num_rows, *_ in rows):
        raise ValueError("alltoall: splits must have one entry a rank, and add up to the first dimension, on all ranks")
    received = [row[3 + (process_set.rank() or 0)] for row in rows]
    travelling = carried(tensor)
    output = travelling.new_empty((sum(received), *tensor.shape[1:]))
    work = begun(dist.all_to_all_single, output, travelling, received, sent, group=group)
    return started([work], lambda: (output.to(tensor.dtype), torch.tensor(received, dtype=torch.int32)))


def reducescatter_async(
    tensor: Any, name: str | None = None, op: int = Average, process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0,
) -> int:  # fmt: skip
    """Each rank keeps its rows of the reduction; earlier ranks get one more where they do not divide."""
    if op not in (Average, Sum):
        raise ValueError("reducescatter takes op=hvd.Average or op=hvd.Sum")
    if tensor.dim() == 0:
        raise ValueError("reducescatter: a tensor without dimensions has no rows to share out")
    whole = torch.empty_like(tensor, requires_grad=False)
    handle = _allreduce(
        [tensor], [whole], None, op, (prescale_factor, postscale_factor), process_set, is_single=True
    )  # fmt: skip
    share, larger = divmod(tensor.shape[0], len(process_set.ranks))
    place = process_set.rank() or 0
    start = place * share + min(place, larger)
    stop = start + share + (1 if place < larger else 0)

    def finish() -> Any:
        return synchronize(handle)[start:stop].clone()

    return started(_pending[handle][0], finish)


def grouped_reducescatter_async(
    tensors: Sequence[Any], name: str | None = None, op: int = Average, process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0,
) -> int:  # fmt: skip
    handles = [
        reducescatter_async(tensor, name, op, process_set, prescale_factor, postscale_factor) for tensor in tensors
    ]
    return _together(handles)


def sparse_allreduce_async(
    tensor: Any, name: str | None = None, op: int = Average, process_set: ProcessSet = global_process_set
) -> Callable[[], Any]:
    """What it returns is called for the result, as with Horovod."""
    from topout.train.fusion.sparse import reduce_sparse

    scale = 1.0 / len(process_set.ranks) if chosen_op(op, None) == Average else 1.0
    return lambda: reduce_sparse(tensor, group_of(process_set), scale)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    gather_numbers([0], group_of(process_set))


_MOST_DIMENSIONS = 12
_DTYPES = sorted(name for name in dir(torch) if isinstance(getattr(torch, name), torch.dtype))


def same_beyond_first(tensor: Any, what: str, group: Any) -> list[list[int]]:
    """Shapes of all ranks; where they cannot go together, the same error on all of them."""
    shapes = _described(tensor, group)
    if any(shape[1:] != shapes[0][1:] or len(shape) != len(shapes[0]) for shape in shapes):
        raise HorovodInternalError(f"{what}: ranks passed shapes {shapes}, which may differ in the first place only")
    return shapes


def same_shape(tensor: Any, what: str, group: Any) -> None:
    shapes = _described(tensor, group)
    if any(shape != shapes[0] for shape in shapes):
        raise HorovodInternalError(f"{what}: ranks passed tensors of different shapes: {shapes}")


def same_root(root_rank: int, what: str, group: Any) -> None:
    """Where each takes itself for the root, all would send, and keep what they have."""
    roots = [row[0] for row in gather_numbers([root_rank], group)]
    if len(set(roots)) > 1:
        raise HorovodInternalError(f"{what}: ranks passed different root ranks: {roots}")


def _described(tensor: Any, group: Any) -> list[list[int]]:
    name = str(tensor.dtype).removeprefix("torch.")
    shape = [*tensor.shape] + [-1] * (_MOST_DIMENSIONS - tensor.dim())
    rows = gather_numbers([_DTYPES.index(name), *shape], group)
    if any(row[0] != rows[0][0] for row in rows):
        names = [_DTYPES[row[0]] for row in rows]
        raise HorovodInternalError(f"ranks passed tensors of different types: {names}")
    return [[number for number in row[1:] if number >= 0] for row in rows]
