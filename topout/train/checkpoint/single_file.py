"""The model of a checkpoint as one safetensors file, which every framework reads.

Needs no GPU, no process group, no model class and not the memory of the whole model: tensors are written one by one.
Not for going on with a training: optimizer, random numbers and loader stay behind.
"""

import json
import math
import mmap
import os
import secrets
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from topout.schema.errors import ExitCode, TopoutError
from topout.train.checkpoint import manifest as manifests
from topout.train.checkpoint.files import flush_folder
from topout.train.checkpoint.manifest import Damaged, Manifest, TensorEntry
from topout.train.checkpoint.reader import file_image, stored_tensor
from topout.train.checkpoint.store import Gone, Seen, Store, read_one
from topout.train.checkpoint.tree import DTYPES, KIND

_NAMES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "complex64": "C64",
}  # fmt: skip


def to_safetensors(source: str | Path, out: str | Path, *, entry: str = "model") -> Path:
    """Writes the newest good checkpoint of a folder, or the one given; returns which it was."""
    return read_one(Path(source), lambda gone: _converted(Path(source), Path(out), entry, gone))


def _converted(source: Path, out: Path, entry: str, gone: frozenset[str]) -> Path:
    folder, manifest, seen = _found(source, gone)
    try:
        _convert(folder, manifest, seen, out, entry)
    except Exception as error:
        if seen.has_gone():
            raise Gone(folder.name) from error
        raise
    return folder


def _convert(folder: Path, manifest: Manifest, seen: Seen, out: Path, entry: str) -> None:
    trees = json.loads((folder / manifests.tree_name(0)).read_bytes())
    if entry not in trees:
        raise TopoutError(
            f"The checkpoint has no {entry!r}.", why=f"It has {', '.join(trees)}.", do="name one of them with entry="
        )
    stored = _stored(trees[entry], entry)
    if not stored:
        raise TopoutError(
            f"{entry!r} holds no tensors by name.", why="There would be nothing in the file.", do='entry="model"'
        )
    _write(out, {name: manifest.tensors[key] for name, key in stored.items()}, folder, seen)


def _stored(tree: Any, entry: str) -> dict[str, str]:
    """Name in the model -> in the checkpoint."""
    names = tree.get("names") if "mesh" in tree else None
    if isinstance(names, list):
        # of a mesh, whose ranks hold parts
        return {name: f"{entry}.{name}" for name in names}
    return {name: leaf["name"] for name, leaf in tree.items() if _is_tensor(leaf)}


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, dict) and leaf.get(KIND) == "tensor"


def _found(source: Path, gone: frozenset[str]) -> tuple[Path, Manifest, Seen]:
    store = Store(source)
    store.bring_back()
    candidates = [store.path(step) for step in reversed(store.steps())] or [source]
    wrong = []
    for folder in candidates:
        seen = Seen(folder)
        try:
            manifest = manifests.read(folder)
            problems = manifests.verify(folder, manifest, slice(None))
        except Damaged as error:
            problems = [str(error)]
        if not problems:
            return folder, manifest, seen
        if seen.has_gone(again=folder == source or folder.name in gone):
            raise Gone(folder.name)
        wrong.append(f"{folder.name}: {problems[0]}")
    raise TopoutError(
        f"There is no good checkpoint in {source}.", why="; ".join(wrong), do="pass the folder given to Checkpoints"
    )


def _write(out: Path, tensors: dict[str, TensorEntry], folder: Path, seen: Seen) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, entry in tensors.items():
        if entry.dtype not in _NAMES:
            raise TopoutError(
                f"{name} is {entry.dtype}.", why="safetensors has no such type.", do="convert it before saving"
            )
        end = at + torch.Size(entry.size).numel() * DTYPES[entry.dtype].itemsize
        header[name] = {"dtype": _NAMES[entry.dtype], "shape": entry.size, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    # of its own name: another may write the same file just now, of another checkpoint
    unfinished = out.with_name(f".{out.name}.{secrets.token_hex(4)}.unfinished")
    try:
        _write_data(unfinished, struct.pack("<Q", len(text)) + text, tensors, folder, seen)
        unfinished.replace(out)
        flush_folder(out.parent)
    except OSError as error:
        raise TopoutError(
            f"{out} cannot be written.",
            why=f"{error.strerror or error} ({error.filename or unfinished}).",
            do=f"name a file in a folder that this user may write to, with room for {math.ceil(at / 1e6)} MB",
            exit_code=ExitCode.ENVIRONMENT,
        ) from error
    finally:
        with suppress(OSError):
            unfinished.unlink()


def _write_data(path: Path, head: bytes, tensors: dict[str, TensorEntry], folder: Path, seen: Seen) -> None:
    with path.open("wb") as file:
        file.write(head)
        for num_opened, entry in enumerate(tensors.values(), 1):
            # those of one tensor at a time: there may be more than a process may have open
            images = {name: file_image(folder / name) for _, _, name, _ in entry.chunks}
            if num_opened == len(tensors):
                seen.raise_if_other()
            file.write(memoryview(_whole(entry, images).reshape(-1).view(torch.uint8).numpy()))
        file.flush()
        os.fsync(file.fileno())


def _whole(entry: TensorEntry, images: dict[str, mmap.mmap]) -> torch.Tensor:
    dtype = DTYPES[entry.dtype]
    whole = torch.empty(entry.size, dtype=dtype, device="cpu")
    for offsets, sizes, file, at in entry.chunks:
        part = whole
        for dimension, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
            part = part.narrow(dimension, offset, size)
        part.copy_(stored_tensor(images[file], at, sizes, dtype))
    return whole
