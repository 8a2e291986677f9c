"""The bytes of a pack's files, version 1: headers, trailers, rows of the index. docs/pack.md says it for strangers.

All integers are little-endian. Whatever is not data is zero, so that equal input gives equal bytes. Not for the
manifest (`manifest`) nor for what stands inside a record (`record`).
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topout.packs.checksum import crc32c
from topout.packs.fields import Field

MAGIC = b"TOPOUTPK"
VERSION = 1
HEADER_BYTES = 4096
TRAILER_BYTES = 64
ALIGNMENT = 8
LONGEST_RECORD = (1 << 32) - 1
_HEADER = struct.Struct("<8sII16sQ")
_TRAILER = struct.Struct("<8sQQQII")
_RESERVED = ("shard", "length", "offset", "crc", "flags")


class FileKind(IntEnum):
    """Which of a pack's files a header begins."""

    INDEX = 1
    NAMES = 2
    SHARD = 3


class RowFlag(IntFlag):
    """What a reader may want to know of a sample before it reads it."""

    GENERAL_DECODER = 1
    """The image is not an 8-bit baseline JPEG, grey or YCbCr."""
    ROTATED = 2
    """EXIF says the image is to be turned or mirrored for display."""


class MisshapenError(ValueError):
    """Bytes that are no header or trailer of a pack; says in what way."""


@dataclass(frozen=True, kw_only=True)
class Header:
    """The first 4096 bytes of a file, of which few are used."""

    kind: FileKind
    pack_id: bytes
    number: int

    def encode(self) -> bytes:
        head = _HEADER.pack(MAGIC, VERSION, self.kind, self.pack_id, self.number).ljust(HEADER_BYTES - 4, b"\0")
        return head + struct.pack("<I", crc32c(head))


@dataclass(frozen=True, kw_only=True)
class Trailer:
    """The last 64 bytes of a file; `data_crc` is of every byte before them."""

    num_rows: int
    footer_offset: int
    footer_bytes: int
    footer_crc: int
    data_crc: int

    def encode(self) -> bytes:
        text = _TRAILER.pack(
            MAGIC, self.num_rows, self.footer_offset, self.footer_bytes, self.footer_crc, self.data_crc
        ).ljust(TRAILER_BYTES - 4, b"\0")
        return text + struct.pack("<I", crc32c(text))


def decode_header(data: bytes) -> Header:
    """Raises MisshapenError."""
    if len(data) < HEADER_BYTES:
        raise MisshapenError("it is shorter than a header")
    magic, version, kind, pack_id, number = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise MisshapenError("it does not begin as a file of a pack")
    if crc32c(data[: HEADER_BYTES - 4]) != struct.unpack_from("<I", data, HEADER_BYTES - 4)[0]:
        raise MisshapenError("its header does not match its checksum")
    if version != VERSION:
        raise MisshapenError(f"it is of version {version}, this reader knows {VERSION}")
    return Header(kind=FileKind(kind), pack_id=pack_id, number=number)


def decode_trailer(data: bytes) -> Trailer:
    """Raises MisshapenError."""
    if len(data) != TRAILER_BYTES or data[:8] != MAGIC:
        raise MisshapenError("it does not end as a file of a pack")
    if crc32c(data[: TRAILER_BYTES - 4]) != struct.unpack_from("<I", data, TRAILER_BYTES - 4)[0]:
        raise MisshapenError("its trailer does not match its checksum")
    _, num_rows, footer_offset, footer_bytes, footer_crc, data_crc = _TRAILER.unpack_from(data)
    return Trailer(
        num_rows=num_rows,
        footer_offset=footer_offset,
        footer_bytes=footer_bytes,
        footer_crc=footer_crc,
        data_crc=data_crc,
    )


def column_name(field: Field) -> str:
    """A scalar's name in the row: its own, unless the row has that name already."""
    return f"{field.name}_" if field.name in _RESERVED else field.name


def row_dtype(fields: Sequence[Field]) -> np.dtype[Any]:
    """One row of the index: where the record lies, its checksum, its flags, then the scalars."""
    place = [("shard", "<u4"), ("length", "<u4"), ("offset", "<u8"), ("crc", "<u4"), ("flags", "<u4")]
    scalars = [(column_name(field), "<i8" if field.kind == "int" else "<f8") for field in fields if field.is_scalar]
    return np.dtype(place + scalars)


def padding(length: int) -> int:
    """Zero bytes that follow a record, so that the next one begins aligned."""
    return -length % ALIGNMENT


def row_crc(record_crc: int, row: bytes, number: int) -> int:
    """The row's checksum: of the record, of the row but its checksum and flags, of the sample's number."""
    return crc32c(row[:16] + row[24:] + struct.pack("<Q", number), record_crc)


def numbered(rows: NDArray[Any], first: int) -> NDArray[Any]:
    """A copy of rows whose checksums lack the sample's number, with the numbers from `first` on."""
    finished = rows.copy()
    finished["crc"] = [
        crc32c(struct.pack("<Q", first + place), crc) for place, crc in enumerate(rows["crc"].tolist())
    ]  # fmt: skip
    return finished
