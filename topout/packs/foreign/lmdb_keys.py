"""Keys of an LMDB environment that topout writes: a sample's first field under its name, further ones behind a NUL.

    name -> first field      name\0field -> another field      \0topout-fields -> the table of fields

Names hold no NUL, being paths mostly, so that such a key is never a sample's.
"""

FIELDS_KEY = b"\0topout-fields"
LONGEST_KEY_BYTES = 511
"""LMDB as everybody builds it."""


def field_key(name: bytes, field: str) -> bytes:
    return name + b"\0" + field.encode("utf-8", "surrogateescape")


def is_sample_key(key: bytes, *, is_ours: bool) -> bool:
    """Bookkeeping of other writers is called `__len__`, `__keys__` and so on; their keys may be binary numbers."""
    if is_ours:
        return b"\0" not in key
    return not (key.startswith(b"__") and key.endswith(b"__"))
