"""One shard of a pack: records, and a footer with a copy of their index rows and names.

The footer lets a shard speak for itself: a damaged index is written again from the footers. Not read in training.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topout.packs.checksum import crc32c
from topout.packs.layout import HEADER_BYTES, TRAILER_BYTES, FileKind, MisshapenError, row_crc
from topout.packs.manifest import ShardEntry
from topout.packs.mapped_file import MappedFile
from topout.packs.names import decode_names, encode_names


@dataclass(frozen=True)
class Footer:
    rows: NDArray[Any]
    names: list[bytes]


class ShardFile(MappedFile):
    """A shard by its number; `entry` is the manifest's line about it."""

    entry: ShardEntry

    def __init__(self, pack: Path, path: Path, entry: ShardEntry, pack_id: bytes, number: int) -> None:
        super().__init__(pack, path, entry, kind=FileKind.SHARD, pack_id=pack_id, number=number)
        self.number = number
        self.data_end = entry.size_bytes - TRAILER_BYTES
        """No record reaches beyond; the footer lies before it as well, but rows are checked against it by checksum."""

    def record(self, row: np.void, number: int) -> memoryview:
        """The record that a row points at; raises MisshapenError where it is not the one the row was written for."""
        length, offset = int(row["length"]), int(row["offset"])
        if int(row["shard"]) != self.number or not HEADER_BYTES <= offset <= offset + length <= self.data_end:
            raise MisshapenError("its index row points to where no record of it can be")
        record = self.read(offset, length)
        if row_crc(crc32c(record), row.tobytes(), number) != int(row["crc"]):
            raise MisshapenError("its bytes do not match their checksum")
        return memoryview(record)

    def footer(self, dtype: np.dtype[Any]) -> Footer:
        """Verified by the footer's own checksum."""
        trailer = self.trailer
        try:
            block = self.read(trailer.footer_offset, trailer.footer_bytes)
        except MisshapenError as error:
            raise self._damage(f"its footer: {error}") from error
        if crc32c(block) != trailer.footer_crc:
            raise self._damage("its footer does not match its checksum")
        return decode_footer(block, trailer.num_rows, dtype)


def encode_footer(rows: NDArray[Any], names: list[bytes]) -> bytes:
    return rows.tobytes() + encode_names(names)


def decode_footer(block: bytes, num_rows: int, dtype: np.dtype[Any]) -> Footer:
    rows = np.frombuffer(block, dtype=dtype, count=num_rows)
    return Footer(rows, decode_names(memoryview(block)[rows.nbytes :], num_rows))
