"""What a checkpoint's folder holds: every file with its checksum, every tensor with its place.

    COMMITTED         written last: size and checksum of the manifest
    manifest.json     step, world size, files, tensors
    rank-00000.json   what is no tensor on that rank, and its random numbers
    rank-00000.data   tensors, as `plan` laid them out

JSON throughout: nothing here can run code when it is read.
"""

import json
import math
import re
from pathlib import Path
from typing import Any

import msgspec
import torch

from topout.packs.checksum import crc32c
from topout.train.checkpoint.files import Written, checksum, flush_folder, write_small
from topout.train.checkpoint.tree import DTYPES

FORMAT = 1
MANIFEST = "manifest.json"
MARKER = "COMMITTED"
_FILE_NAME = re.compile(r"rank-\d{5,}\.(json|data)")


class Damaged(Exception):  # noqa: N818  (as the message says it)
    """A checkpoint that must not be used; says which file and why."""


class TensorEntry(msgspec.Struct, frozen=True):
    dtype: str
    size: list[int]
    chunks: list[tuple[list[int], list[int], str, int]]
    """Offsets, sizes, file, and where in the file."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    step: int
    epoch: int | None
    world_size: int
    seed: int
    files: dict[str, tuple[int, int]]
    """Bytes and CRC-32C by name."""
    tensors: dict[str, TensorEntry]

    def sizes(self) -> dict[str, tuple[torch.Size, torch.dtype]]:
        return {name: (torch.Size(entry.size), DTYPES[entry.dtype]) for name, entry in self.tensors.items()}


def tree_name(rank: int) -> str:
    return f"rank-{rank:05d}.json"


def write(folder: Path, manifest: dict[str, Any]) -> None:
    """And the marker, after everything else is safe."""
    data = json.dumps({"format": FORMAT, **manifest}).encode()
    written = write_small(folder / MANIFEST, data)
    flush_folder(folder)
    write_small(folder / MARKER, _marker(written))
    flush_folder(folder)


def read(folder: Path) -> Manifest:
    """Raises Damaged for one that was not finished, not written by this format, or changed since."""
    try:
        marker, data = (folder / MARKER).read_bytes(), (folder / MANIFEST).read_bytes()
    except OSError as error:
        raise Damaged(f"{Path(error.filename or folder).name}: {error.strerror}") from error
    if marker != _marker(Written(len(data), crc32c(data))):
        raise Damaged(f"{MANIFEST}: not what {MARKER} says was written")
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except msgspec.DecodeError as error:
        raise Damaged(f"{MANIFEST}: {error}") from error
    if manifest.format != FORMAT:
        raise Damaged(f"{MANIFEST}: format {manifest.format}, and this topout reads {FORMAT}")
    _check(manifest)
    return manifest


def verify(folder: Path, manifest: Manifest, share: slice) -> list[str]:
    """What is wrong with some of the files; all ranks together look at all."""
    wrong = []
    for name, (num_bytes, value) in sorted(manifest.files.items())[share]:
        try:
            found = checksum(folder / name)
        except OSError as error:
            wrong.append(f"{name}: {error.strerror}")
            continue
        if found.num_bytes != num_bytes:
            wrong.append(f"{name}: {found.num_bytes} bytes instead of {num_bytes}")
        elif found.crc32c != value:
            wrong.append(f"{name}: checksum {found.crc32c:08x} instead of {value:08x}")
    return wrong


def _marker(manifest: Written) -> bytes:
    return json.dumps({"manifest_bytes": manifest.num_bytes, "manifest_crc32c": manifest.crc32c}).encode()


def _check(manifest: Manifest) -> None:
    """A manifest made by hand must not lead out of its folder or its files."""
    for name in manifest.files:
        if not _FILE_NAME.fullmatch(name):
            raise Damaged(f"{MANIFEST}: a file called {name!r}")
    for name, entry in manifest.tensors.items():
        if entry.dtype not in DTYPES:
            raise Damaged(f"{MANIFEST}: {name} has type {entry.dtype!r}")
        for offsets, sizes, file, at in entry.chunks:
            end = at + math.prod(sizes) * DTYPES[entry.dtype].itemsize
            is_inside = len(offsets) == len(sizes) == len(entry.size) and all(
                0 <= offset <= offset + size <= whole
                for offset, size, whole in zip(offsets, sizes, entry.size, strict=True)
            )
            if at < 0 or file not in manifest.files or end > manifest.files[file][0] or not is_inside:
                raise Damaged(f"{MANIFEST}: {name} lies outside of {file}")
