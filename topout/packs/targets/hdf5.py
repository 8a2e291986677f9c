"""One HDF5 file: a dataset for each field along the samples, names in `__name__`, checksums (fletcher32) on numbers.

Numbers and arrays of one shape are plain datasets; bytes and images are rows of uint8 of varying length, as are arrays
of varying shape, each a .npy; text and JSON are strings. Rows of varying length carry no checksum: HDF5 has none there.
"""

from pathlib import Path
from typing import Any

import numpy as np

from topout.packs.fields import Field, Sample, Value
from topout.packs.foreign.arrival import arriving_file
from topout.packs.foreign.field_table import write_table
from topout.packs.foreign.hdf5_columns import CLASSES_AND_FIELDS, NAMES
from topout.packs.foreign.json_text import write_json
from topout.packs.foreign.npy import write_npy
from topout.packs.foreign.pack_samples import named_samples
from topout.packs.foreign.packages import require
from topout.packs.pack import Pack
from topout.packs.targets import Progress
from topout.schema.errors import TopoutError

_BLOCK_BYTES = 16 << 20
_BLOCK_ROWS = 1024
_CHUNK_BYTES = 1 << 20


def write(pack: Pack, destination: Path, progress: Progress) -> None:
    h5py = require("h5py", what="Writing HDF5")
    _check_fields(pack)
    with arriving_file(destination) as path, h5py.File(path, "w") as file:
        file.attrs[CLASSES_AND_FIELDS] = write_table(pack.fields, pack.manifest.classes)
        names = file.create_dataset(NAMES, (len(pack),), h5py.string_dtype("utf-8"), maxshape=(None,))
        datasets = {field.name: _create(h5py, file, field, len(pack)) for field in pack.fields}
        row, block, block_bytes = 0, [], 0
        for name, sample, num_bytes in named_samples(pack):
            block.append((name, sample))
            block_bytes += num_bytes
            if block_bytes >= _BLOCK_BYTES or len(block) == _BLOCK_ROWS:
                _write_block(pack, datasets, names, row, block)
                row, block, block_bytes = row + len(block), [], 0
            progress.add(1, num_bytes)
        _write_block(pack, datasets, names, row, block)
        for dataset in (names, *datasets.values()):  # shorter, where damaged samples were left out
            dataset.resize(row + len(block), axis=0)


def _create(h5py: Any, file: Any, field: Field, num_rows: int) -> Any:
    if field.kind in ("str", "json"):
        return file.create_dataset(field.name, (num_rows,), h5py.string_dtype("utf-8"), maxshape=(None,))
    if field.is_scalar or (field.kind == "array" and field.shape is not None and field.dtype is not None):
        dtype = np.dtype(field.dtype or ("<i8" if field.kind == "int" else "<f8"))
        shape = field.shape or ()
        row_bytes = max(1, int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
        rows_a_chunk = max(1, min(num_rows, _CHUNK_BYTES // row_bytes))
        return file.create_dataset(
            field.name,
            (num_rows, *shape),
            dtype,
            maxshape=(None, *shape),
            chunks=(rows_a_chunk, *shape),
            fletcher32=True,
        )
    return file.create_dataset(field.name, (num_rows,), h5py.vlen_dtype(np.uint8), maxshape=(None,))


def _write_block(pack: Pack, datasets: dict[str, Any], names: Any, row: int, block: list[tuple[str, Sample]]) -> None:
    if not block:
        return
    rows = slice(row, row + len(block))
    names[rows] = [_text(name, name) for name, _ in block]
    for field in pack.fields:
        dataset = datasets[field.name]
        values = [_stored(field, name, sample[field.name]) for name, sample in block]
        if dataset.dtype.kind != "O":
            dataset[rows] = np.stack(values) if field.kind == "array" else values
        elif field.kind in ("str", "json"):
            dataset[rows] = values
        else:
            for place, value in enumerate(values):  # h5py makes one array of rows that happen to be equally long
                dataset[row + place] = value


def _stored(field: Field, name: str, value: Value) -> Value:
    if field.kind == "str":
        return _text(name, value)
    if field.kind == "json":
        return write_json(value)
    if field.is_scalar or (field.kind == "array" and field.shape is not None and field.dtype is not None):
        return value
    return np.frombuffer(write_npy(value) if field.kind == "array" else bytes(value), np.uint8)


def _text(name: str, text: str) -> bytes:
    if "\0" in text:
        raise TopoutError(
            f"A text of {name!r} cannot go to HDF5.",
            why="its strings end at the first NUL, and this one has another",
            do="choose another target, such as webdataset",
        )
    return text.encode("utf-8", "surrogateescape")


def _check_fields(pack: Pack) -> None:
    for field in pack.fields:
        if field.name in (NAMES, ".") or field.name.startswith("/") or "\0" in field.name:
            raise TopoutError(
                f"Field {field.name!r} cannot be a dataset of HDF5.",
                why=f"{NAMES} holds the names of the samples, and a dataset's name is a relative path",
                do="choose another target, such as tfrecord",
            )
