"""Writes the records of one shard, and remembers their rows until the shard gets its footer.

Rows lack the sample's number in their checksum: how many samples earlier shards hold is known only when those are done,
since entries may be left out or cut into several.
"""

import json
import os
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from topout.packs.checksum import crc32c
from topout.packs.fields import Field
from topout.packs.layout import LONGEST_RECORD, FileKind, Header, padding, row_dtype
from topout.packs.names import encode_name
from topout.packs.packing.begun import write_durably
from topout.packs.shard import decode_footer, encode_footer
from topout.packs.sources import BadEntry

_CHUNK_BYTES = 4 << 20
_MOST_PARTS = 1024
"""That one call may write (IOV_MAX)."""


@dataclass(frozen=True, kw_only=True)
class ShardRows:
    """All that is known of a shard whose records are on disk."""

    rows: NDArray[Any]
    """Unnumbered, see `layout.row_crc`."""
    names: list[bytes]
    data_bytes: int
    data_crc: int
    """Of the header and all records with their padding."""
    bad: list[BadEntry]


@dataclass(frozen=True, kw_only=True)
class _RowsHead:
    num_rows: int
    footer_bytes: int
    data_bytes: int
    data_crc: int
    bad: list[BadEntry]


class ShardWriter:
    """Appends records to a new file; `close` puts them on disk."""

    def __init__(self, path: Path, fields: Sequence[Field], pack_id: bytes, number: int) -> None:
        self.number = number
        self.data_bytes = 0
        self.bad: list[BadEntry] = []
        self._dtype = row_dtype(fields)
        self._place = struct.Struct("<IIQ")
        self._scalars = struct.Struct(
            "<" + "".join("q" if field.kind == "int" else "d" for field in fields if field.is_scalar)
        )
        self._rows: list[bytes] = []
        self._names: list[bytes] = []
        self._crc = 0
        self._waiting: list[bytes] = []
        self._num_waiting = 0
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        self._put([Header(kind=FileKind.SHARD, pack_id=pack_id, number=number).encode()])

    def __len__(self) -> int:
        return len(self._rows)

    def append(self, name: str, record: Sequence[bytes], scalars: Sequence[int | float], flags: int = 0) -> None:
        """Raises ValueError, and stays as it was, for a record that is too long or a name that has no bytes."""
        name_bytes = encode_name(name)
        length = sum(map(len, record))
        if length > LONGEST_RECORD:
            raise ValueError(f"it is {length} bytes long; a sample may have {LONGEST_RECORD}")
        crc = 0
        for part in record:
            crc = crc32c(part, crc)
        place = self._place.pack(self.number, length, self.data_bytes)
        values = self._scalars.pack(*scalars)
        crc = crc32c(values, crc32c(place, crc))
        self._rows.append(place + struct.pack("<II", crc, flags) + values)
        self._names.append(name_bytes)
        self._put([*record, bytes(padding(length))] if padding(length) else record)

    def close(self) -> ShardRows:
        """After this the records are on disk, and the file lacks nothing but its footer."""
        try:
            self._flush()
            os.fsync(self._fd)
        finally:
            self.abandon()
        return ShardRows(
            rows=np.frombuffer(b"".join(self._rows), dtype=self._dtype),
            names=self._names,
            data_bytes=self.data_bytes,
            data_crc=self._crc,
            bad=self.bad,
        )

    def abandon(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _put(self, parts: Sequence[bytes]) -> None:
        for part in parts:
            self._crc = crc32c(part, self._crc)
        self._waiting.extend(parts)
        added = sum(map(len, parts))
        self.data_bytes += added
        self._num_waiting += added
        if self._num_waiting >= _CHUNK_BYTES:
            self._flush()

    def _flush(self) -> None:
        """Without joining the parts first: a copy of every byte would cost as much as the write."""
        for start in range(0, len(self._waiting), _MOST_PARTS):
            _write_all(self._fd, self._waiting[start : start + _MOST_PARTS])
        self._waiting, self._num_waiting = [], 0


def _write_all(fd: int, parts: list[bytes]) -> None:
    left = sum(map(len, parts)) - os.writev(fd, parts)
    # a disk that is nearly full, or a signal, ends a write early
    rest = memoryview(b"".join(parts))[-left:] if left else memoryview(b"")
    while rest:
        rest = rest[os.write(fd, rest) :]


def write_rows(path: Path, shard: ShardRows) -> None:
    """The file that says: the records of this shard are whole."""
    footer = encode_footer(shard.rows, shard.names)
    head = _RowsHead(
        num_rows=len(shard.rows),
        footer_bytes=len(footer),
        data_bytes=shard.data_bytes,
        data_crc=shard.data_crc,
        bad=shard.bad,
    )
    # not msgspec's own writer and reader: they refuse the lone surrogates of names that are not UTF-8
    write_durably(path, [json.dumps(asdict(head)).encode(), b"\n", footer])


def read_rows(path: Path, fields: Sequence[Field]) -> ShardRows | None:
    """None where the shard is not done."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    line, _, footer = data.partition(b"\n")
    head = msgspec.convert(json.loads(line), type=_RowsHead)
    found = decode_footer(footer, head.num_rows, row_dtype(fields))
    return ShardRows(
        rows=found.rows, names=found.names, data_bytes=head.data_bytes, data_crc=head.data_crc, bad=head.bad
    )
