"""Columns of an Arrow table as fields: what each type becomes, and its values.

Missing values (null) make a bad entry, except within JSON: a pack has no way to say that a number is not there.
"""

import base64
import datetime
import decimal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from topout.packs.fields import DTYPES, Field, Value
from topout.packs.foreign.json_text import read_json
from topout.packs.foreign.packages import require
from topout.packs.foreign.signature import shared_kind


@dataclass(frozen=True, kw_only=True)
class Column:
    name: str
    field: Field
    is_image_struct: bool = False
    """Hugging Face's {bytes, path}."""


def columns_of(schema: Any, batch: Any | None, wanted: Sequence[str] | None) -> list[Column]:
    """`batch` are the first rows. Raises ValueError for a type that no field can hold."""
    names = [name for name in schema.names if wanted is None or name in wanted]
    return [_column(name, schema.field(name).type, None if batch is None else batch.column(name)) for name in names]


def class_names(schema: Any) -> tuple[str, ...] | None:
    """Of the label, where Hugging Face's metadata names them."""
    text = (schema.metadata or {}).get(b"huggingface")
    try:
        names = read_json(text)["info"]["features"]["label"]["names"] if text else None
    except (ValueError, KeyError, TypeError):
        return None
    return tuple(map(str, names)) if isinstance(names, list) else None


def column_value(column: Column, item: Any) -> Value:
    """Raises ValueError."""
    kind = column.field.kind
    if kind == "json":
        return _plain(item.as_py())
    if not item.is_valid:
        raise ValueError(f"{column.name} is null")
    if kind == "array":
        return _array(column, item)
    if column.is_image_struct:
        data = item["bytes"].as_py()
        if data is None:
            raise ValueError(f"{column.name} has no bytes, only a path")
        return data
    value = item.as_py()
    return int(value) if kind == "int" else value


def _column(name: str, kind: Any, values: Any | None) -> Column:
    types = require("pyarrow.types", what="Reading Arrow")
    if types.is_boolean(kind) or types.is_integer(kind):
        return Column(name=name, field=Field(name=name, kind="int"))
    if types.is_floating(kind):
        return Column(name=name, field=Field(name=name, kind="float"))
    text = kind.value_type if types.is_dictionary(kind) else kind
    if types.is_string(text) or types.is_large_string(text):
        return Column(name=name, field=Field(name=name, kind="str"))
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return Column(name=name, field=Field(name=name, kind=_blob_kind(values)))
    if types.is_struct(kind) and {kind.field(place).name for place in range(kind.num_fields)} == {"bytes", "path"}:
        blobs = None if values is None else values.field("bytes")
        return Column(name=name, field=Field(name=name, kind=_blob_kind(blobs)), is_image_struct=True)
    shape, items = _list_shape(kind)
    if shape is not None and (types.is_integer(items) or types.is_floating(items)):
        dtype = np.dtype(items.to_pandas_dtype()).newbyteorder("<").str
        if dtype in DTYPES:
            # one list whose length is in its type has one shape; others vary
            is_fixed = all(length is not None for length in shape)
            fixed = tuple(length for length in shape if length is not None) if is_fixed else None
            return Column(name=name, field=Field(name=name, kind="array", dtype=dtype, shape=fixed))
    return Column(name=name, field=Field(name=name, kind="json"))


def _list_shape(kind: Any) -> tuple[list[int | None] | None, Any]:
    """Lengths of nested lists, None for one that varies, and the type inside."""
    types = require("pyarrow.types", what="Reading Arrow")
    shape: list[int | None] = []
    while types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        shape.append(kind.list_size if types.is_fixed_size_list(kind) else None)
        kind = kind.value_type
    return shape or None, kind


def _blob_kind(values: Any | None) -> str:
    return "bytes" if values is None else shared_kind(value.as_py() for value in values if value.is_valid)


def _array(column: Column, item: Any) -> np.ndarray[Any, Any]:
    value = item.as_py()
    try:
        if _has_null(value):
            # NumPy would make NaN of it
            raise TypeError
        return np.array(value, column.field.dtype)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{column.name} is not an array: it has null values or rows of different lengths") from error


def _has_null(value: Any) -> bool:
    return value is None or (isinstance(value, list) and (None in value or any(map(_has_null, value))))


def _plain(value: Any) -> Value:
    """What JSON can say; bytes become base64, moments ISO 8601."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return str(value) if isinstance(value, decimal.Decimal | datetime.timedelta) else value
