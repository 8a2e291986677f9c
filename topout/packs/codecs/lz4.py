"""LZ4 blocks: a u32 length, then the block; little gain, hardly any cost to read.

Not for data that is read from a slow network; `zstd` makes it smaller.
"""

import importlib

from topout.packs.codecs import Codec


class Lz4:
    def __init__(self) -> None:
        self._block = importlib.import_module("lz4.block")

    def encode(self, data: bytes, _item_bytes: int) -> bytes:
        return bytes(self._block.compress(data, store_size=True))

    def decode(self, stored: memoryview, _item_bytes: int) -> bytes:
        try:
            return bytes(self._block.decompress(stored))
        except self._block.LZ4BlockError as error:
            raise ValueError(str(error)) from error


def build(_dictionary: bytes | None) -> Codec:
    return Lz4()
