"""Amounts of bytes as people write and read them."""

import re

from topout.schema.errors import TopoutError

_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def parse_bytes(text: str) -> int:
    """`256M`, `256MiB` and `268435456` are the same."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), flags=re.IGNORECASE)
    if found is None or float(found[1]) == 0:
        raise TopoutError(f"{text!r} is not a size.", why="a size is a number with K, M, G or T", do="try 256M")
    return int(float(found[1]) * (1 << _UNITS[found[2].upper()]))


def bytes_text(num_bytes: float) -> str:
    """Three digits, in powers of ten: 95.3 KB."""
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if num_bytes < 999.5 or unit == "TB":
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    raise AssertionError
