"""Small files that the kernel shows under /sys and /proc: read whole, and empty where they are absent or refused.

Not for files that a user wrote: there, what cannot be read is an error that the user should hear of.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from os import PathLike

_CHUNK_BYTES = 1 << 16
DEVICES_OF_NVIDIA = ("/dev/nvidiactl", "/dev/dxg")
"""Either leads to a GPU; the second inside Windows, where /proc and /sys say nothing of one."""


def read_text(path: str | PathLike[str], *, is_whole: bool = True) -> str:
    """Without `is_whole` what the kernel gives at first: some 4 KiB of a list with a part for each processor."""
    # a large host has hundreds of these files: `open` takes as long again for its layers, and pathlib longer than both
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, ValueError):
        return ""
    try:
        found = os.read(fd, _CHUNK_BYTES)
        while is_whole and (more := os.read(fd, _CHUNK_BYTES)):
            found += more
    except OSError:
        return ""
    finally:
        os.close(fd)
    return found.decode(errors="replace")


def read_int(path: str | PathLike[str]) -> int | None:
    try:
        return int(read_text(path))
    except ValueError:
        return None


def names_in(folder: str) -> list[str]:
    """Sorted."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 (see above)
    except OSError:
        return []


def field_of(text: str, name: str) -> str:
    """The value in a line `name: value`; empty when there is none."""
    return next((line.partition(":")[2].strip() for line in text.splitlines() if line.startswith(f"{name}:")), "")
