"""HMAC-SHA256, and a comparison that tells nothing by its duration: how launchers prove that they know the job's token.

As `hmac` has them, on Python's own SHA-256: that module loads OpenSSL, which takes longer than the whole handshake. Not
for anything larger than a nonce.
"""

from __future__ import annotations

import os
import sys
from _operator import _compare_digest

try:
    if sys.version_info >= (3, 12):
        from _sha2 import sha256  # type: ignore[import-not-found]
    else:
        from _sha256 import sha256  # type: ignore[import-not-found]
except ImportError:
    # a Python that was built without its own
    from hashlib import sha256

__all__ = ["hmac_sha256", "is_same_text", "new_nonce"]

_BLOCK_BYTES = 64
_INNER, _OUTER = bytes(byte ^ 0x36 for byte in range(256)), bytes(byte ^ 0x5C for byte in range(256))


def hmac_sha256(key: bytes, message: bytes) -> str:
    """RFC 2104, in hexadecimal digits."""
    if len(key) > _BLOCK_BYTES:
        key = sha256(key).digest()
    key = key.ljust(_BLOCK_BYTES, b"\0")
    inner = sha256(key.translate(_INNER) + message).digest()
    digits: str = sha256(key.translate(_OUTER) + inner).hexdigest()
    return digits


def is_same_text(one: str, other: str) -> bool:
    """Any text may come from the other end, also one that is no UTF-8; digests are compared as bytes for that."""
    return _compare_digest(one.encode(errors="replace"), other.encode(errors="replace"))


def new_nonce() -> str:
    """16 bytes that nobody can guess, in hexadecimal digits."""
    return os.urandom(16).hex()
