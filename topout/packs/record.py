"""A sample as the bytes of its record, and back.

    [u32 length of each variable field] [fixed arrays] [variable fields]      all in the order of the fields

Scalars are in the index row, not here. Not for reading many fixed arrays: `Pack.gather` copies those at once.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from topout.packs.codecs import Codec, codec_of
from topout.packs.fields import DTYPES, MOST_DIMENSIONS, Field, Sample, Value, dtype_code


class RecordLayout:
    """Where the fields of a record stand; one for all samples of a pack."""

    def __init__(self, fields: Sequence[Field], dictionaries: Mapping[str, bytes]) -> None:
        self.fields = tuple(fields)
        self.scalars = tuple(field for field in fields if field.is_scalar)
        self.fixed = tuple(field for field in fields if field.is_fixed)
        self.variable = tuple(field for field in fields if field.is_variable)
        self.codecs: dict[str, Codec] = {
            field.name: codec_of(field.codec, dictionaries.get(field.name)) for field in self.variable
        }
        self._lengths = struct.Struct(f"<{len(self.variable)}I")
        self.fixed_offsets: dict[str, int] = {}
        offset = self._lengths.size
        for field in self.fixed:
            self.fixed_offsets[field.name] = offset
            offset += field.num_bytes
        self.variable_offset = offset

    def encode(self, sample: Sample) -> list[bytes]:
        """The parts of the record, in order. Raises ValueError for a sample that does not fit the fields."""
        if sample.keys() != {field.name for field in self.fields}:
            expected = ", ".join(field.name for field in self.fields)
            raise ValueError(f"it has the fields {', '.join(sample)}, the pack {expected}")
        stored = [self._stored(field, sample[field.name]) for field in self.variable]
        try:
            lengths = self._lengths.pack(*map(len, stored))
        except struct.error as error:
            raise ValueError("a field is longer than 4 GiB") from error
        return [lengths, *(_fixed_bytes(field, sample[field.name]) for field in self.fixed), *stored]

    def scalar_values(self, sample: Sample) -> list[int | float]:
        """Raises ValueError for numbers that do not fit a column."""
        return [_scalar(field, sample[field.name]) for field in self.scalars]

    def decode(self, record: memoryview) -> Sample:
        """Fixed and variable fields; raises ValueError where the record's lengths do not add up."""
        sample: Sample = {}
        for field in self.fixed:
            sample[field.name] = self.fixed_array(record, field)
        for field, stored in zip(self.variable, self.split(record), strict=True):
            sample[field.name] = self._value(field, stored)
        return sample

    def fixed_array(self, record: memoryview, field: Field) -> np.ndarray[Any, Any]:
        start = self.fixed_offsets[field.name]
        data = bytes(record[start : start + field.num_bytes])
        return np.frombuffer(bytearray(data), dtype=field.dtype).reshape(field.shape or ())

    def split(self, record: memoryview) -> list[memoryview]:
        """The stored bytes of each variable field."""
        if len(record) < self.variable_offset:
            raise ValueError("the record is shorter than its fixed part")
        parts = []
        offset = self.variable_offset
        for length in self._lengths.unpack_from(record):
            parts.append(record[offset : offset + length])
            offset += length
        if offset != len(record):
            raise ValueError("the lengths of the fields do not add up to the record's")
        return parts

    def _stored(self, field: Field, value: Value) -> bytes:
        codec = self.codecs[field.name]
        if field.kind == "array":
            array = _array(field, value)
            head = struct.pack("<BB", dtype_code(array.dtype), array.ndim) + struct.pack(
                f"<{array.ndim}I", *array.shape
            )
            return head + codec.encode(_bytes_of(array), array.dtype.itemsize)
        return codec.encode(_plain_bytes(field, value), 1)

    def _value(self, field: Field, stored: memoryview) -> Value:
        codec = self.codecs[field.name]
        if field.kind == "array":
            return _decode_array(stored, codec)
        data = codec.decode(stored, 1)
        if field.kind == "str":
            return data.decode("utf-8", "surrogateescape")
        return json.loads(data) if field.kind == "json" else data


def _decode_array(stored: memoryview, codec: Codec) -> np.ndarray[Any, Any]:
    code, num_dimensions = struct.unpack_from("<BB", stored)
    if code >= len(DTYPES) or num_dimensions > MOST_DIMENSIONS:
        raise ValueError("an array has an unknown item type or too many dimensions")
    shape = struct.unpack_from(f"<{num_dimensions}I", stored, 2)
    dtype = np.dtype(DTYPES[code])
    data = codec.decode(stored[2 + 4 * num_dimensions :], dtype.itemsize)
    return np.frombuffer(bytearray(data), dtype=dtype).reshape(shape)


def _array(field: Field, value: Value) -> np.ndarray[Any, Any]:
    array = np.asarray(value)
    dtype = np.dtype(DTYPES[dtype_code(array.dtype)])
    if array.ndim > MOST_DIMENSIONS:
        raise ValueError(f"{field.name} has {array.ndim} dimensions, more than {MOST_DIMENSIONS}")
    if field.dtype is not None and dtype != np.dtype(field.dtype):
        raise ValueError(f"{field.name} is an array of {array.dtype}, not of {np.dtype(field.dtype)}")
    if field.shape is not None and array.shape != field.shape:
        raise ValueError(f"{field.name} has the shape {array.shape}, not {field.shape}")
    # ascontiguousarray would turn a shape of () into (1,)
    return array.astype(dtype, order="C", copy=False)


def _bytes_of(array: np.ndarray[Any, Any]) -> bytes:
    return array.tobytes()


def _fixed_bytes(field: Field, value: Value) -> bytes:
    return _bytes_of(_array(field, value))


def _plain_bytes(field: Field, value: Value) -> bytes:
    if field.kind == "str":
        if not isinstance(value, str):
            raise ValueError(f"{field.name} is a {type(value).__name__}, not text")
        return value.encode("utf-8", "surrogateescape")
    if field.kind == "json":
        try:
            return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogateescape")
        except TypeError as error:
            raise ValueError(f"{field.name}: {error}") from error
    if isinstance(value, bytes):
        return value
    if not isinstance(value, bytearray | memoryview):
        raise ValueError(f"{field.name} is a {type(value).__name__}, not bytes")
    return bytes(value)


def _scalar(field: Field, value: Value) -> int | float:
    if field.kind == "float" and isinstance(value, int | float | np.floating | np.integer):
        return float(value)
    if field.kind == "int" and isinstance(value, int | np.integer):
        number = int(value)
        if not -(1 << 63) <= number < 1 << 63:
            raise ValueError(f"{field.name} is {number}, which 64 bits cannot hold")
        return number
    raise ValueError(f"{field.name} is a {type(value).__name__}, not {field.kind}")
