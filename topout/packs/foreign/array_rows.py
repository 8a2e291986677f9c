"""Rows of arrays as samples: what field an array along its first axis makes, and its values as a pack takes them.

Shared by NumPy and HDF5. A column of numbers is a scalar field; more dimensions are an array of one shape.
"""

from typing import Any

import numpy as np

from topout.packs.fields import DTYPES, Field, Value


def row_field(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Field:
    """`shape` without the first axis. Raises ValueError for items no field can hold."""
    if dtype.kind == "S":
        return Field(name=name, kind="bytes" if not shape else "json")
    if dtype.kind == "U":
        return Field(name=name, kind="str" if not shape else "json")
    text = dtype.newbyteorder("<").str
    if text not in DTYPES:
        raise ValueError(f"{name!r} holds items of type {dtype}, which a pack cannot")
    if not shape and dtype.kind in "biu":
        return Field(name=name, kind="int")
    if not shape and dtype.kind == "f":
        return Field(name=name, kind="float")
    return Field(name=name, kind="array", shape=shape, dtype=text)


def row_value(field: Field, item: Any) -> Value:
    if field.kind == "int":
        return int(item)
    if field.kind == "float":
        return float(item)
    if field.kind == "array":
        return np.asarray(item, field.dtype)
    if field.kind == "json":
        return _texts(item)
    if field.kind == "str":
        return item.decode("utf-8", "surrogateescape") if isinstance(item, bytes) else str(item)
    return bytes(item)


def _texts(item: Any) -> Value:
    values = item.tolist() if isinstance(item, np.ndarray) else item
    if isinstance(values, list):
        return [_texts(value) for value in values]
    return values.decode("utf-8", "surrogateescape") if isinstance(values, bytes) else values
