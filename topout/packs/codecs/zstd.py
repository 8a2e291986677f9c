"""Zstandard frames, with a dictionary trained on the pack's own samples where they are small.

Not for what must be decoded at several GB/s a core; `lz4` is quicker and larger.
"""

import threading
from collections.abc import Sequence
from typing import Any

from topout.packs.codecs import Codec

LEVEL = 3
MOST_BYTES = 1 << 32
DICTIONARY_BYTES = 64 << 10
_FEWEST_SAMPLES = 64
_LARGEST_MEAN_BYTES = 16 << 10
"""Beyond this, a frame finds its repetitions in itself."""


class Zstd:
    def __init__(self, dictionary: bytes | None) -> None:
        self._dictionary = dictionary
        # the library's contexts must not be shared by threads
        self._of_thread = threading.local()

    def encode(self, data: bytes, _item_bytes: int) -> bytes:
        return bytes(self._contexts()[0].compress(data))

    def decode(self, stored: memoryview, _item_bytes: int) -> bytes:
        import zstandard

        try:
            length = zstandard.frame_content_size(bytes(stored[:18]))
            if not 0 <= length < MOST_BYTES:
                raise ValueError("a compressed field does not say how long it is")
            return bytes(self._contexts()[1].decompress(stored, max_output_size=length)) if length else b""
        except zstandard.ZstdError as error:
            raise ValueError(str(error)) from error

    def _contexts(self) -> tuple[Any, Any]:
        if not hasattr(self._of_thread, "pair"):
            import zstandard

            given = None if self._dictionary is None else zstandard.ZstdCompressionDict(self._dictionary)
            self._of_thread.pair = (
                zstandard.ZstdCompressor(level=LEVEL, dict_data=given),
                zstandard.ZstdDecompressor(dict_data=given),
            )
        pair: tuple[Any, Any] = self._of_thread.pair
        return pair


def build(dictionary: bytes | None) -> Codec:
    return Zstd(dictionary)


def train(values: Sequence[bytes]) -> bytes | None:
    """A dictionary for values like these; None where it would not pay."""
    import zstandard

    whole: list[bytes | bytearray | memoryview] = [value for value in values if value]
    if len(whole) < _FEWEST_SAMPLES or sum(map(len, whole)) > _LARGEST_MEAN_BYTES * len(whole):
        return None
    # a dictionary larger than a tenth of what it was trained on has learnt it by heart
    size = min(DICTIONARY_BYTES, sum(map(len, whole)) // 10)
    try:
        return bytes(zstandard.train_dictionary(size, whole, threads=0).as_bytes())
    except zstandard.ZstdError:
        return None
