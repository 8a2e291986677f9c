"""Names of samples: by number at once, by name through a sorted order; nothing of it is a Python object until asked.

    names.bin = header, names, u32 order[n] (numbers of the samples, sorted by the bytes of their names), trailer
    names     = u64 offsets[n + 1], the bytes one after another, zeros to a multiple of 8

Names are bytes as the file system has them; in Python they are text with surrogates where they are not UTF-8.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from topout.packs.layout import HEADER_BYTES, padding
from topout.packs.mapped_file import MappedFile


def encode_name(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def decode_name(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def encode_names(names: Sequence[bytes]) -> bytes:
    """The block of names, as in names.bin and in a shard's footer."""
    offsets = np.zeros(len(names) + 1, dtype="<u8")
    np.cumsum([len(name) for name in names], out=offsets[1:], dtype="<u8")
    text = b"".join(names)
    return offsets.tobytes() + text + bytes(padding(len(text)))


def decode_names(block: bytes | memoryview, num_names: int) -> list[bytes]:
    """Raises ValueError for a block that does not hold so many."""
    view = memoryview(block)
    offsets = np.frombuffer(view, dtype="<u8", count=num_names + 1).tolist()
    text = bytes(view[8 * (num_names + 1) :])
    if any(start > stop for start, stop in pairwise(offsets)) or offsets[-1] > len(text):
        raise ValueError("the offsets of the names do not fit")
    return [text[start:stop] for start, stop in pairwise(offsets)]


def sorted_order(names: Sequence[bytes]) -> NDArray[np.uint32]:
    return np.array(sorted(range(len(names)), key=names.__getitem__), dtype="<u4")


class Names:
    """The mapped names.bin; its checksum is verified on first use."""

    def __init__(self, file: MappedFile, num_names: int) -> None:
        self._file = file
        self._num_names = num_names

    def __len__(self) -> int:
        return self._num_names

    def __getitem__(self, number: int) -> str:
        return decode_name(self._bytes_of(number))

    def find(self, name: str) -> int | None:
        """The number of the sample of that name."""
        sought = encode_name(name)
        view = self._verified()
        order = np.frombuffer(view, dtype="<u4", count=self._num_names, offset=self._file.trailer.footer_offset)
        low, high = 0, self._num_names
        while low < high:
            middle = (low + high) // 2
            if self._bytes_of(int(order[middle])) < sought:
                low = middle + 1
            else:
                high = middle
        if low < self._num_names and self._bytes_of(int(order[low])) == sought:
            return int(order[low])
        return None

    def _bytes_of(self, number: int) -> bytes:
        view = self._verified()
        start, stop = np.frombuffer(view, dtype="<u8", count=2, offset=HEADER_BYTES + 8 * number).tolist()
        text = HEADER_BYTES + 8 * (self._num_names + 1)
        return bytes(view[text + start : text + stop])

    def _verified(self) -> memoryview:
        self._file.verify()
        return self._file.view
