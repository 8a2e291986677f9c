"""Datasets of an HDF5 file as columns: which of them have rows, and what a row is.

Files that topout wrote say the kinds of their fields; of others the types of the datasets and the first rows tell.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from topout.packs.fields import DTYPES, Field, Value
from topout.packs.foreign.array_rows import row_field, row_value
from topout.packs.foreign.columns import check_columns
from topout.packs.foreign.json_text import read_json
from topout.packs.foreign.npy import read_npy
from topout.packs.foreign.packages import require
from topout.packs.foreign.signature import shared_kind
from topout.schema.errors import TopoutError

NAMES = "__name__"
"""The dataset with the samples' names."""
CLASSES_AND_FIELDS = "topout-fields"
"""The attribute with the table of fields."""
_NUM_LOOKED_AT = 16


@dataclass(frozen=True, kw_only=True)
class Column:
    path: str
    field: Field
    num_rows: int
    is_varying: bool
    """Rows have lengths of their own, and lie elsewhere in the file."""


def find_columns(opened: Any, told: Sequence[Field] | None, wanted: Sequence[str] | None) -> list[Column]:
    """Every dataset with at least one axis, by name, or those in `wanted`; raises for one that no field can hold."""
    told_fields = {field.name: field for field in told or ()}
    paths = _paths(opened) if told is None else list(told_fields)
    check_columns(paths, wanted)
    # chosen before they are looked at: what cannot be packed can be left out
    chosen = [path for path in paths if wanted is None or path in wanted]
    return [_column(path, opened[path], told_fields.get(path) or _judged(opened, path)) for path in chosen]


def _paths(opened: Any) -> list[str]:
    h5py = require("h5py", what="Reading HDF5")
    paths: list[str] = []

    def visit(path: str, found: Any) -> None:
        if isinstance(found, h5py.Dataset) and found.shape and path != NAMES:
            paths.append(path)

    opened.visititems(visit)
    return sorted(paths)


def column_value(column: Column, item: Any) -> Value:
    field = column.field
    if not column.is_varying:
        return row_value(field, item)
    if isinstance(item, np.ndarray) and field.kind in ("bytes", "jpeg", "png", "array", "json"):
        data = item.tobytes()
        if field.kind == "array":
            return read_npy(data) if item.dtype == np.uint8 else item
        return read_json(data) if field.kind == "json" else data
    if isinstance(item, str):
        item = item.encode("utf-8", "surrogateescape")
    if not isinstance(item, bytes):
        raise ValueError(f"{field.name} is a {type(item).__name__}, not {field.kind}")
    if field.kind == "str":
        return item.decode("utf-8", "surrogateescape")
    return read_json(item) if field.kind == "json" else item


def row_bytes(column: Column) -> int:
    field = column.field
    if column.is_varying:
        return 0
    return field.num_bytes if field.kind == "array" else 8


def _column(path: str, dataset: Any, field: Field) -> Column:
    is_varying = dataset.dtype.kind == "O"
    return Column(path=path, field=field, num_rows=int(dataset.shape[0]), is_varying=is_varying)


def _judged(opened: Any, path: str) -> Field:
    try:
        return _field(require("h5py", what="Reading HDF5"), path, opened[path])
    except ValueError as error:
        raise TopoutError(
            f"A dataset of {opened.filename} cannot be packed.",
            why=str(error),
            do="choose the others with --columns, or convert it to a plain numeric type",
        ) from error


def _field(h5py: Any, path: str, dataset: Any) -> Field:
    dtype, shape = dataset.dtype, tuple(int(length) for length in dataset.shape[1:])
    if dtype.kind != "O":
        return row_field(path, shape, dtype)
    text = h5py.check_string_dtype(dtype)
    items = h5py.check_vlen_dtype(dtype)
    looked_at = dataset[:_NUM_LOOKED_AT] if not shape else []
    if text is not None and not shape:
        kind = shared_kind(value for value in looked_at if isinstance(value, bytes))
        return Field(name=path, kind="str" if kind == "bytes" and text.encoding == "utf-8" else kind)
    if items is not None and not shape and np.dtype(items) == np.uint8:
        return Field(name=path, kind=shared_kind(bytes(value[:16].tobytes()) for value in looked_at))
    if items is not None and not shape and np.dtype(items).newbyteorder("<").str in DTYPES:
        return Field(name=path, kind="array", dtype=np.dtype(items).newbyteorder("<").str)
    raise ValueError(f"dataset {path!r} holds items of type {dtype} in rows of shape {shape}, which a pack cannot")
