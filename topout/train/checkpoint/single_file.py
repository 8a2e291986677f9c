"""The model of a checkpoint as one safetensors file, which every framework reads.

Needs no GPU, no process group, no model class and not the memory of the whole model: tensors are written one by one.
Not for going on with a training: optimizer, random numbers and loader stay behind.
"""

import json
import mmap
import struct
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from topout.schema.errors import TopoutError
from topout.train.checkpoint import manifest as manifests
from topout.train.checkpoint.manifest import Damaged, Manifest, TensorEntry
from topout.train.checkpoint.reader import stored_tensor
from topout.train.checkpoint.store import Store
from topout.train.checkpoint.tree import DTYPES, KIND

_NAMES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "complex64": "C64",
}  # fmt: skip


def to_safetensors(source: str | Path, out: str | Path, *, entry: str = "model") -> Path:
    """Writes the newest good checkpoint of a folder, or the one given; returns which it was."""
    folder, manifest = _found(Path(source))
    trees = json.loads((folder / manifests.tree_name(0)).read_bytes())
    if entry not in trees:
        raise TopoutError(
            f"The checkpoint has no {entry!r}.", why=f"It has {', '.join(trees)}.", do="name one of them with entry="
        )
    stored = {name: leaf["name"] for name, leaf in trees[entry].items() if _is_tensor(leaf)}
    _write(Path(out), {name: manifest.tensors[key] for name, key in stored.items()}, folder)
    return folder


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, dict) and leaf.get(KIND) == "tensor"


def _found(source: Path) -> tuple[Path, Manifest]:
    store = Store(source)
    candidates = [store.path(step) for step in reversed(store.steps())] or [source]
    wrong = []
    for folder in candidates:
        try:
            manifest = manifests.read(folder)
            problems = manifests.verify(folder, manifest, slice(None))
        except Damaged as error:
            problems = [str(error)]
        if not problems:
            return folder, manifest
        wrong.append(f"{folder.name}: {problems[0]}")
    raise TopoutError(
        f"There is no good checkpoint in {source}.", why="; ".join(wrong), do="pass the folder given to Checkpoints"
    )


def _write(out: Path, tensors: dict[str, TensorEntry], folder: Path) -> None:
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
    unfinished = out.with_name(f".{out.name}.unfinished")
    with ExitStack() as files, unfinished.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        images: dict[str, mmap.mmap] = {}
        for entry in tensors.values():
            for _, _, name, _ in entry.chunks:
                if name not in images:
                    opened = files.enter_context((folder / name).open("rb"))
                    images[name] = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)
            file.write(memoryview(_whole(entry, images).reshape(-1).view(torch.uint8).numpy()))
    unfinished.replace(out)


def _whole(entry: TensorEntry, images: dict[str, mmap.mmap]) -> torch.Tensor:
    dtype = DTYPES[entry.dtype]
    whole = torch.empty(entry.size, dtype=dtype, device="cpu")
    for offsets, sizes, file, at in entry.chunks:
        part = whole
        for dimension, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
            part = part.narrow(dimension, offset, size)
        part.copy_(stored_tensor(images[file], at, sizes, dtype))
    return whole
