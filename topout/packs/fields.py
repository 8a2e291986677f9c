"""What a sample is made of: named fields, each of one kind, stored with one codec.

A field's place follows from its kind: scalars live in the index row, arrays of one known shape stand at a fixed place
in the record (so a batch of them is one gather), everything else is variable and carries its length.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from topout.packs.codecs import check_codec
from topout.schema.errors import TopoutError

Value = Any
"""bytes (bytes, jpeg, png), np.ndarray (array), int, float, str, or what JSON can say (json)."""
Sample = dict[str, Value]

KINDS = ("bytes", "jpeg", "png", "array", "int", "float", "str", "json")
IMAGE_KINDS = ("jpeg", "png")
DTYPES = (
    "|b1", "|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4", "<f8", "<c8", "<c16",
)  # fmt: skip
"""An array's item type is stored as its place in this table; never reorder, only append."""
MOST_DIMENSIONS = 16
_MOST_FIXED_BYTES = (1 << 32) - 1
"""A record's length has four bytes."""


@dataclass(frozen=True, kw_only=True)
class Field:
    """One column of a pack. `shape` and `dtype` are of arrays only; a shape of None varies from sample to sample."""

    name: str
    kind: str
    codec: str = "raw"
    shape: tuple[int, ...] | None = None
    dtype: str | None = None

    @property
    def is_scalar(self) -> bool:
        return self.kind in ("int", "float")

    @property
    def is_fixed(self) -> bool:
        return self.kind == "array" and self.codec == "raw" and self.shape is not None and self.dtype is not None

    @property
    def is_variable(self) -> bool:
        return not self.is_scalar and not self.is_fixed

    @property
    def is_image(self) -> bool:
        return self.kind in IMAGE_KINDS

    @property
    def num_bytes(self) -> int:
        """Of a fixed array in the record."""
        return np.dtype(self.dtype).itemsize * math.prod(self.shape or ())


def checked_fields(fields: Sequence[Field]) -> tuple[Field, ...]:
    """The fields as they are stored; raises for what a pack cannot hold, and for codecs that are not here."""
    for field in fields:
        check_codec(field.codec)
    return stored_fields(fields)


def stored_fields(fields: Sequence[Field]) -> tuple[Field, ...]:
    """With item types in little-endian spelling; raises for what a pack cannot hold, whatever its codec."""
    if not fields:
        raise TopoutError("A pack needs at least one field.", why="no field was given", do="name what a sample holds")
    names = [field.name for field in fields]
    if len(set(names)) != len(names) or not all(names):
        raise TopoutError(
            f"Fields {', '.join(map(repr, names))} cannot be told apart.",
            why="each field needs a name of its own",
            do="rename one of them",
        )
    stored = tuple(_stored(field) for field in fields)
    fixed_bytes = sum(field.num_bytes for field in stored if field.is_fixed)
    if fixed_bytes > _MOST_FIXED_BYTES:
        raise TopoutError(
            f"A sample with {', '.join(field.name for field in stored if field.is_fixed)} is too long.",
            why=f"its arrays take {fixed_bytes:,} bytes, of 4 GiB at most",
            do="cut them into several samples",
        )
    return stored


def with_codecs(fields: Sequence[Field], codecs: Mapping[str, str]) -> tuple[Field, ...]:
    """The same fields, some with another codec."""
    unknown = sorted(set(codecs) - {field.name for field in fields})
    if unknown:
        raise TopoutError(
            f"There is no field {unknown[0]!r}.",
            why=f"the samples have {', '.join(field.name for field in fields)}",
            do="give --codec FIELD=NAME with one of these",
        )
    return checked_fields(
        [
            Field(
                name=field.name,
                kind=field.kind,
                codec=codecs.get(field.name, field.codec),
                shape=field.shape,
                dtype=field.dtype,
            )
            for field in fields
        ]
    )


def dtype_code(dtype: np.dtype[Any]) -> int:
    """The place of an item type in `DTYPES`; raises ValueError for types a pack does not hold."""
    text = dtype.newbyteorder("<").str
    if text not in DTYPES:
        raise ValueError(f"arrays of {dtype} cannot be packed")
    return DTYPES.index(text)


def _stored(field: Field) -> Field:
    if field.kind not in KINDS:
        raise _refusal(field, f"there is no kind {field.kind!r}", f"choose one of {', '.join(KINDS)}")
    if field.codec != "raw" and (field.is_scalar or field.is_image):
        raise _refusal(field, f"{field.kind} gains nothing from a codec", "leave it raw")
    if field.kind != "array" or field.dtype is None:
        return field
    try:
        dtype = DTYPES[dtype_code(np.dtype(field.dtype))]
    except (TypeError, ValueError, SyntaxError) as error:
        raise _refusal(field, str(error), "convert it to a plain numeric type") from error
    if field.shape is not None and len(field.shape) > MOST_DIMENSIONS:
        raise _refusal(field, f"it has {len(field.shape)} dimensions", f"keep to {MOST_DIMENSIONS}")
    shape = None if field.shape is None else tuple(int(length) for length in field.shape)
    if shape is not None and min(shape, default=0) < 0:
        raise _refusal(field, f"its shape is {shape}", "give lengths of 0 and more")
    return Field(name=field.name, kind=field.kind, codec=field.codec, shape=shape, dtype=dtype)


def _refusal(field: Field, why: str, do: str) -> TopoutError:
    return TopoutError(f"Field {field.name!r} cannot be stored as {field.kind} with {field.codec}.", why=why, do=do)
