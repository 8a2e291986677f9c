"""JPEG, PNG or neither, told by the first bytes.

Not by the file's extension: data sets in the wild hold PNGs called .jpg, and rows of a table have no extension at all.
"""

from collections.abc import Iterable

JPEG = b"\xff\xd8\xff"
PNG = b"\x89PNG\r\n\x1a\n"
HEAD_BYTES = 8


def kind_of(head: bytes | memoryview) -> str:
    start = bytes(head[:HEAD_BYTES])
    if start.startswith(JPEG):
        return "jpeg"
    return "png" if start == PNG else "bytes"


def shared_kind(heads: Iterable[bytes | memoryview]) -> str:
    """The kind of a field whose values begin like these; a mixture, or nothing at all, is plain bytes."""
    kinds = {kind_of(head) for head in heads}
    return kinds.pop() if len(kinds) == 1 else "bytes"


def only_field_name(kind: str) -> str:
    """A source without names for its fields has one; the folder source calls it the same."""
    return "image" if kind in ("jpeg", "png") else "data"
