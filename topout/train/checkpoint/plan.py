"""Which rank writes which tensor, and where in its file: DCP's planner, asked once and used until a tensor changes.

A file is the image of the memory it was staged in: tensors one after the other, row by row, each at a multiple of 64
bytes; the whole a multiple of a page, so that it may be written past the page cache.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

from topout.schema.errors import TopoutError
from topout.train.checkpoint.agreement import Agreement
from topout.train.checkpoint.captured import Captured
from topout.train.checkpoint.tree import DTYPE_NAMES, DTYPES

ALIGNMENT = 64
PAGE_BYTES = 4096


@dataclass(frozen=True)
class Piece:
    """A tensor, or a shard of one, in a file."""

    name: str
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    dtype: torch.dtype
    at: int

    @property
    def num_bytes(self) -> int:
        return math.prod(self.sizes) * int(self.dtype.itemsize)


@dataclass(frozen=True)
class Layout:
    """`tensors` is the manifest's table of all ranks; `pieces` are this rank's."""

    pieces: tuple[Piece, ...]
    num_bytes: int
    tensors: dict[str, Any]


def data_name(rank: int) -> str:
    return f"rank-{rank:05d}.data"


def make_layout(captured: Captured, agreement: Agreement) -> Layout:
    """All ranks together."""
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(captured.tensors, is_coordinator=agreement.place.is_first)
    given = agreement.shared([_as_values(item) for item in planner.create_local_plan().items])
    _check_alike(given)
    # every rank computes the whole plan from the same lists, so nothing needs to be sent back
    plans = [SavePlan([_as_item(values) for values in items]) for items in given]
    plans, _ = planner.create_global_plan(plans)
    tensors: dict[str, Any] = {}
    own: tuple[Piece, ...] = ()
    own_bytes = 0
    for rank, plan in enumerate(plans):
        pieces, num_bytes = _placed(plan.items)
        if rank == agreement.place.rank:
            own, own_bytes = tuple(pieces), num_bytes
        sizes = {item.index.fqn: list(item.tensor_data.size) for item in plan.items}
        for piece in pieces:
            entry = tensors.setdefault(
                piece.name, {"dtype": DTYPE_NAMES[piece.dtype], "size": sizes[piece.name], "chunks": []}
            )
            if piece.num_bytes:  # a rank that has only empty ones writes no file
                entry["chunks"].append([list(piece.offsets), list(piece.sizes), data_name(rank), piece.at])
    return Layout(own, own_bytes, tensors)


def _placed(items: list[Any]) -> tuple[list[Piece], int]:
    pieces, at = [], 0
    for item in items:
        data = item.tensor_data
        piece = Piece(item.index.fqn, tuple(data.chunk.offsets), tuple(data.chunk.sizes), data.properties.dtype, at)
        pieces.append(piece)
        at += -(-piece.num_bytes // ALIGNMENT) * ALIGNMENT
    return pieces, -(-at // PAGE_BYTES) * PAGE_BYTES


def _as_values(item: Any) -> list[Any]:
    data = item.tensor_data
    return [
        item.index.fqn, item.type == WriteItemType.SHARD, list(data.chunk.offsets), list(data.chunk.sizes),
        DTYPE_NAMES[data.properties.dtype], list(data.size),
    ]  # fmt: skip


def _as_item(values: list[Any]) -> Any:
    name, is_shard, offsets, sizes, dtype, size = values
    return WriteItem(
        index=MetadataIndex(name, offsets),
        type=WriteItemType.SHARD if is_shard else WriteItemType.TENSOR,
        tensor_data=TensorWriteData(
            chunk=ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)),
            properties=TensorProperties(dtype=DTYPES[dtype]),
            size=torch.Size(size),
        ),
    )


def _check_alike(given: list[list[list[Any]]]) -> None:
    """DCP keeps one of several equal names without a look at the rest."""
    seen: dict[str, tuple[int, Any]] = {}
    for rank, items in enumerate(given):
        for name, is_shard, _, _, dtype, size in items:
            first, known = seen.setdefault(name, (rank, (is_shard, dtype, size)))
            if known != (is_shard, dtype, size):
                raise TopoutError(
                    f"Ranks {first} and {rank} have different tensors {name}.",
                    why=f"{known[1]} {known[2]} on one, {dtype} {size} on the other; it would be saved once for both.",
                    do="build the same model and optimizer on all ranks",
                )
