"""The bytes as they are.

Not for numeric arrays that repeat themselves and come from slow storage: see `bitshuffle` and `zstd`.
"""

from topout.packs.codecs import Codec


class Raw:
    def encode(self, data: bytes, _item_bytes: int) -> bytes:
        return data

    def decode(self, stored: memoryview, _item_bytes: int) -> bytes:
        return bytes(stored)


def build(_dictionary: bytes | None) -> Codec:
    return Raw()
