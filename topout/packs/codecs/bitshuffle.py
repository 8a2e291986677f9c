"""Bit-shuffle, then LZ4: all first bits of the items, all second bits, and so on; for measured numbers.

Bits of one significance repeat where whole numbers do not, so bands of a satellite image shrink to what their sensor
really resolved. Not for text or bytes: there is nothing to line up. Items are taken in blocks of 8192; those after the
last multiple of eight are stored as they are.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from topout.packs.codecs import Codec, codec_of

_BLOCK_ITEMS = 8192
_Turn = Callable[[NDArray[np.uint8], int], NDArray[np.uint8]]


class Bitshuffle:
    def __init__(self) -> None:
        self._lz4 = codec_of("lz4")

    def encode(self, data: bytes, item_bytes: int) -> bytes:
        return self._lz4.encode(_by_blocks(data, item_bytes, _shuffled), item_bytes)

    def decode(self, stored: memoryview, item_bytes: int) -> bytes:
        return _by_blocks(self._lz4.decode(stored, item_bytes), item_bytes, _unshuffled)


def build(_dictionary: bytes | None) -> Codec:
    return Bitshuffle()


def _by_blocks(data: bytes, item_bytes: int, turn: _Turn) -> bytes:
    octets = np.frombuffer(data, dtype=np.uint8)
    num_items = len(octets) // item_bytes // 8 * 8
    done = np.empty_like(octets)
    for start in range(0, num_items, _BLOCK_ITEMS):
        stop = min(start + _BLOCK_ITEMS, num_items)
        done[start * item_bytes : stop * item_bytes] = turn(octets[start * item_bytes : stop * item_bytes], item_bytes)
    done[num_items * item_bytes :] = octets[num_items * item_bytes :]
    return done.tobytes()


def _shuffled(block: NDArray[np.uint8], item_bytes: int) -> NDArray[np.uint8]:
    bits = np.unpackbits(block.reshape(-1, item_bytes), axis=1, bitorder="little")
    return np.packbits(np.ascontiguousarray(bits.T), axis=1, bitorder="little").reshape(-1)


def _unshuffled(block: NDArray[np.uint8], item_bytes: int) -> NDArray[np.uint8]:
    bits = np.unpackbits(block.reshape(item_bytes * 8, -1), axis=1, bitorder="little")
    return np.packbits(np.ascontiguousarray(bits.T), axis=1, bitorder="little").reshape(-1)
