"""The block format of event files: appended whole, checked when read, torn at most in the last block.

A file is a sequence of blocks, each `HEADER` + payload. A reader stops at the first block whose magic, length or
checksum does not hold; everything before it is good. Three types of payload:

    ROWS   the five columns of `event.COLUMNS` one after another, little-endian int64
    NAMES  JSON list [first_id, name, name, …]: the strings that name ids stand for
    FACTS  JSON object: what the rank knows about itself (versions, devices, clocks, notes); later keys win
"""

import struct
import zlib

from topout.schema.light_enum import IntEnum

MAGIC = b"TPEV"
VERSION = 1
HEADER = struct.Struct("<4sHHII")
"""magic, version, block type, payload bytes, crc32 of the payload"""


class BlockType(IntEnum):
    ROWS = 1
    NAMES = 2
    FACTS = 3


def seal(block_type: BlockType, payload: bytes) -> bytes:
    return HEADER.pack(MAGIC, VERSION, block_type, len(payload), zlib.crc32(payload)) + payload


def is_whole(payload: bytes | memoryview, crc: int) -> bool:
    return zlib.crc32(payload) == crc
