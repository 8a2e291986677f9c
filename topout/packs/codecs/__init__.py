"""How stored bytes stand for others: one codec a file, each `encode` and `decode` of whole values.

A codec's file has `build(dictionary) -> Codec`. Not for images: JPEG and PNG are compressed already and are left alone.
"""

import importlib
from typing import Protocol, cast

from topout.schema.plugin import load_plugin


class Codec(Protocol):
    """`item_bytes` is the size of an array's items, 1 for anything else; it may steer the codec, never the values."""

    def encode(self, data: bytes, item_bytes: int) -> bytes: ...

    def decode(self, stored: memoryview, item_bytes: int) -> bytes: ...


OWN = ("bitshuffle", "lz4", "raw", "zstd")
"""Those of this folder. Looking for others asks every installed package, which takes longer than opening a pack."""


def check_codec(name: str) -> None:
    """Raises where there is none of that name."""
    if name not in OWN:
        load_plugin(__name__, name)


def codec_of(name: str, dictionary: bytes | None = None) -> Codec:
    """An unknown name is an error that lists those there are."""
    module = importlib.import_module(f"{__name__}.{name}") if name in OWN else load_plugin(__name__, name)
    return cast(Codec, module.build(dictionary))
