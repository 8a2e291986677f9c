"""CRC-32C, the checksum of packs: every flipped bit and every burst of up to 32 is detected.

The compiled library computes it without a copy and without the GIL; where it is missing, a wheel's does.
"""

from collections.abc import Callable
from functools import cache

_CHUNK_BYTES = 1 << 20


def crc32c(data: bytes | bytearray | memoryview, value: int = 0) -> int:
    """The checksum of what `value` is the checksum of, followed by `data`."""
    return _function()(data, value) if len(data) else value


@cache
def _function() -> Callable[[bytes | bytearray | memoryview, int], int]:
    from topout.native.bindings import library

    native = library()
    return _of_wheel if native is None else native.crc32c


def _of_wheel(data: bytes | bytearray | memoryview, value: int = 0) -> int:
    import google_crc32c

    if isinstance(data, bytes):
        return int(google_crc32c.extend(value, data))
    # the wheel takes bytes alone; a chunk at a time keeps the copy small
    view = memoryview(data).cast("B")
    for start in range(0, len(view), _CHUNK_BYTES):
        value = google_crc32c.extend(value, bytes(view[start : start + _CHUNK_BYTES]))
    return int(value)
