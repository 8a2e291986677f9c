"""Tensors of a checkpoint into those of this run, whatever the number of ranks and the shards were: DCP's load planner.

DCP's own reader takes its metadata from a pickle; this one from the manifest, and the tensors from raw bytes.
"""

import mmap
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from topout.train.checkpoint.manifest import Manifest
from topout.train.checkpoint.store import Seen
from topout.train.checkpoint.tree import DTYPES


def load_into(targets: dict[str, torch.Tensor], folder: Path, manifest: Manifest, seen: Seen) -> None:
    """Fills every target by its name; each rank by itself, since reading needs no agreement.

    Raises Gone where another has come into the folder's place: what is filled then may be of both.
    """
    wanted = {name: manifest.tensors[name] for name in targets}
    metadata = Metadata(
        {
            name: TensorStorageMetadata(
                TensorProperties(dtype=DTYPES[entry.dtype]),
                torch.Size(entry.size),
                [ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)) for offsets, sizes, _, _ in entry.chunks],
            )
            for name, entry in wanted.items()
        }
    )
    places = {
        MetadataIndex(name, offsets): (file, at, sizes, DTYPES[entry.dtype])
        for name, entry in wanted.items()
        for offsets, sizes, file, at in entry.chunks
    }
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(targets, metadata, is_coordinator=False)
    plan = planner.finish_plan(planner.create_global_plan([planner.create_local_plan()])[0])
    # file by file: a job of many ranks has more of them than a process may have open
    items = sorted(plan.items, key=lambda item: places[item.storage_index][0])
    last = places[items[-1].storage_index][0] if items else ""
    name, image = "", None
    with torch.no_grad():
        for item in items:
            file, at, sizes, dtype = places[item.storage_index]
            if file != name or image is None:
                name, image = file, file_image(folder / file)
                if file == last:
                    seen.raise_if_other()
            _copy(planner, item, stored_tensor(image, at, sizes, dtype))


def stored_tensor(image: mmap.mmap, at: int, sizes: list[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor over the file's memory; pages are read when they are touched."""
    count = torch.Size(sizes).numel()
    if count == 0:
        return torch.empty(sizes, dtype=dtype, device="cpu")
    return torch.frombuffer(image, dtype=dtype, count=count, offset=at).view(sizes)


def _copy(planner: Any, item: Any, stored: torch.Tensor) -> None:
    for dimension, (offset, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
        stored = stored.narrow(dimension, offset, length)
    target = planner.resolve_tensor(item).detach()
    target.copy_(stored)
    planner.commit_tensor(item, target)


def file_image(path: Path) -> mmap.mmap:
    """A private copy, as torch wants memory that it may write to; never written. Freed with the last tensor over it."""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
