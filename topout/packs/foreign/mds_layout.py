"""MDS, the format of MosaicML streaming: its index, its shards and how values are encoded.

    shard:  u32 number of samples, u32 offsets[n + 1], JSON, samples
    sample: u32 length of each column without a fixed size, then the columns

Pickled columns are refused: reading them would run whatever somebody wrote. Version 2, the one in use.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from topout.packs.fields import MOST_DIMENSIONS, Field, Value
from topout.packs.foreign.json_text import read_json

_SCALARS = {
    "int": "<i8", "int8": "|i1", "int16": "<i2", "int32": "<i4", "int64": "<i8", "uint8": "|u1", "uint16": "<u2",
    "uint32": "<u4", "uint64": "<u8", "float16": "<f2", "float32": "<f4", "float64": "<f8",
}  # fmt: skip
_ARRAY_CODES = {
    8: "|u1", 9: "|i1", 16: "<u2", 17: "<i2", 18: "<f2", 32: "<u4", 33: "<i4", 34: "<f4", 64: "<u8", 65: "<i8",
    66: "<f8",
}  # fmt: skip
_ARRAY_NAMES = {np.dtype(code).name: code for code in _ARRAY_CODES.values()}
_PLAIN = {
    "bytes": "bytes", "jpeg": "jpeg", "png": "png", "str": "str", "json": "json", "str_int": "int",
    "str_float": "float", "str_decimal": "str",
}  # fmt: skip
_LENGTHS = ("u1", "<u2", "<u4", "<u8")


@dataclass(frozen=True, kw_only=True)
class Column:
    name: str
    encoding: str
    size_bytes: int | None
    """None: written before the sample."""
    field: Field


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A shard's file, as it is or compressed."""

    basename: str
    size_bytes: int
    hashes: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Shard:
    columns: tuple[Column, ...]
    num_samples: int
    raw: Stored
    compressed: Stored | None
    compression: str | None


def read_index(text: bytes) -> tuple[Shard, ...]:
    """Raises ValueError for anything but an index of MDS shards."""
    try:
        index = read_json(text)
        return tuple(_shard(entry) for entry in index["shards"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"its index lacks something: {type(error).__name__}: {error}") from error


def sample_offsets(head: bytes | memoryview, num_samples: int, size_bytes: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Where the samples of a shard begin, and the last one ends. Raises ValueError for a damaged table."""
    table_bytes = 4 * (num_samples + 2)
    if len(head) < table_bytes or struct.unpack_from("<I", head)[0] != num_samples:
        raise ValueError("its table of samples is damaged")
    offsets = np.frombuffer(head[4:table_bytes], "<u4").astype(np.int64)
    if offsets[0] < table_bytes or offsets[-1] > size_bytes or (np.diff(offsets) < 0).any():
        raise ValueError("its table of samples is damaged")
    return offsets


def read_sample(columns: Sequence[Column], data: memoryview) -> dict[str, Value]:
    """Raises ValueError when the bytes do not fit the columns."""
    num_lengths = sum(column.size_bytes is None for column in columns)
    if len(data) < 4 * num_lengths:
        raise ValueError("it is shorter than its lengths")
    lengths = iter(struct.unpack_from(f"<{num_lengths}I", data))
    position = 4 * num_lengths
    sample: dict[str, Value] = {}
    for column in columns:
        length = next(lengths) if column.size_bytes is None else column.size_bytes
        if position + length > len(data):
            raise ValueError(f"it ends within {column.name!r}")
        sample[column.name] = _decode(column, bytes(data[position : position + length]))
        position += length
    if position != len(data):
        raise ValueError("its columns are shorter than it")
    return sample


def _shard(entry: dict[str, Any]) -> Shard:
    if entry["format"] != "mds" or entry["version"] != 2:
        raise ValueError(f"format {entry['format']} of version {entry['version']} is not known")
    names, encodings, sizes = entry["column_names"], entry["column_encodings"], entry["column_sizes"]
    num_samples = _number(entry["samples"])
    compressed = entry["zip_data"]
    return Shard(
        columns=tuple(_column(*each) for each in zip(names, encodings, sizes, strict=True)),
        num_samples=num_samples,
        raw=_stored(entry["raw_data"]),
        compressed=None if compressed is None else _stored(compressed),
        compression=None if entry["compression"] is None else str(entry["compression"]).partition(":")[0],
    )


def _stored(entry: dict[str, Any]) -> Stored:
    basename, hashes = entry["basename"], entry["hashes"]
    # a name that leads elsewhere would read files that are no part of the data
    if not isinstance(basename, str) or "\0" in basename or basename.startswith("/") or ".." in basename.split("/"):
        raise ValueError(f"{basename!r} is not a file of the folder")
    return Stored(
        basename=basename,
        size_bytes=_number(entry["bytes"]),
        hashes={str(name): str(value) for name, value in hashes.items()},
    )


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 32:
        raise ValueError(f"{value!r} is not a size")
    return value


def _column(name: object, encoding: object, size_bytes: object) -> Column:
    if not isinstance(name, str) or not isinstance(encoding, str):
        raise ValueError(f"{name!r} is not a column")
    if encoding.partition(":")[0] in ("pkl", "pickle"):
        raise ValueError(f"column {name!r} is pickled, and unpickling runs whatever somebody put there")
    return Column(
        name=name,
        encoding=encoding,
        size_bytes=None if size_bytes is None else _number(size_bytes),
        field=_field(name, encoding),
    )


def _field(name: str, encoding: str) -> Field:
    if encoding in _PLAIN:
        return Field(name=name, kind=_PLAIN[encoding])
    if encoding in _SCALARS:
        return Field(name=name, kind="float" if encoding.startswith("float") else "int")
    kind, *parts = encoding.split(":")
    if kind == "ndarray" and len(parts) <= 2:
        dtype = _ARRAY_NAMES[parts[0]] if parts else None
        shape = tuple(int(length) for length in parts[1].split(",")) if len(parts) == 2 else None
        if shape is not None and (len(shape) > MOST_DIMENSIONS or min(shape) < 1 or max(shape) >= 1 << 32):
            raise ValueError(f"column {name!r} has the shape {shape}")
        return Field(name=name, kind="array", shape=shape, dtype=dtype)
    raise ValueError(f"column {name!r} is encoded as {encoding}, which no field can hold")


def _decode(column: Column, data: bytes) -> Value:
    if column.encoding in _SCALARS:
        dtype = np.dtype(_SCALARS[column.encoding])
        if len(data) != dtype.itemsize:
            raise ValueError(f"{column.name!r} has {len(data)} bytes, not {dtype.itemsize}")
        return np.frombuffer(data, dtype)[0].item()
    kind = column.field.kind
    if kind == "array":
        return _array(column, data)
    if kind == "json":
        return read_json(data)
    if kind == "str":
        return data.decode("utf-8", "surrogateescape")
    if kind in ("int", "float"):
        return int(data) if kind == "int" else float(data)
    return data


def _array(column: Column, data: bytes) -> np.ndarray[Any, Any]:
    dtype_text, shape, position = column.field.dtype, column.field.shape, 0
    try:
        if dtype_text is None:
            dtype_text = _ARRAY_CODES[data[0]]
            position = 1
        if shape is None:
            num_dimensions, width = data[position] >> 2, _LENGTHS[data[position] & 3]
            count = num_dimensions * np.dtype(width).itemsize
            lengths = np.frombuffer(data[position + 1 : position + 1 + count], width)
            if len(lengths) != num_dimensions:
                raise ValueError(f"{column.name!r} ends within its shape")
            shape = tuple(int(length) for length in lengths)
            position += 1 + count
    except (KeyError, IndexError) as error:
        raise ValueError(f"{column.name!r} is not an array") from error
    dtype = np.dtype(dtype_text)
    if len(data) - position != dtype.itemsize * int(np.prod(shape, dtype=object)):
        raise ValueError(f"{column.name!r} does not have the bytes its shape asks for")
    return np.frombuffer(data, dtype, offset=position).reshape(shape)
