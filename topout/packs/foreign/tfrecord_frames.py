"""TFRecord's frames: where each record of a file starts and how long it is, and whether its bytes are the ones written.

    u64 length, u32 masked crc32c of the length, the record, u32 masked crc32c of the record

Not for compressed files, which have no places to jump to. Reference: tensorflow/core/lib/io/record_writer.h.
"""

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from topout.packs.checksum import crc32c

HEAD_BYTES = 12
TAIL_BYTES = 4
_MASK = 0xA282EAD8


@dataclass(frozen=True, kw_only=True)
class Frames:
    offsets: npt.NDArray[np.int64]
    """Of the records themselves, behind their heads."""
    lengths: npt.NDArray[np.int64]
    fault: str | None
    """Why the file could not be followed to its end; the frames before are good."""


def frame(record: bytes) -> bytes:
    length = struct.pack("<Q", len(record))
    return length + struct.pack("<I", masked_crc(length)) + record + struct.pack("<I", masked_crc(record))


def masked_crc(data: bytes | memoryview) -> int:
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def find_frames(path: Path, look_at: Callable[[bytes], None] | None = None, look_bytes: int = 0) -> Frames:
    """Jumps from head to head; `look_at` is given the first bytes of each record, read along with its head."""
    offsets, lengths = [], []
    fault = None
    size_bytes = path.stat().st_size
    with path.open("rb", buffering=0) as file:
        position = 0
        while position < size_bytes:
            head = os.pread(file.fileno(), HEAD_BYTES + look_bytes, position)
            if len(head) < HEAD_BYTES:
                fault = f"it ends within a head, at byte {position}"
                break
            length, crc = struct.unpack_from("<QI", head)
            if crc != masked_crc(head[:8]):
                fault = f"the length at byte {position} does not match its checksum"
                break
            if position + HEAD_BYTES + length + TAIL_BYTES > size_bytes:
                fault = f"the record at byte {position} should have {length} bytes, the file ends before"
                break
            if look_at is not None:
                look_at(head[HEAD_BYTES : HEAD_BYTES + length])
            offsets.append(position + HEAD_BYTES)
            lengths.append(length)
            position += HEAD_BYTES + length + TAIL_BYTES
    return Frames(offsets=np.array(offsets, np.int64), lengths=np.array(lengths, np.int64), fault=fault)


def checked_record(data: bytes) -> bytes:
    """A record followed by its checksum, without it. Raises ValueError when the bytes are not the ones written."""
    record = data[:-TAIL_BYTES]
    if data[-TAIL_BYTES:] != struct.pack("<I", masked_crc(record)):
        raise ValueError("its bytes do not match their checksum")
    return record
