"""A packed file as `open` gives it: the same classes around bytes that lie in memory.

Buffered and text layers are the interpreter's own; only the lowest one is ours. Who asks for a file number gets a real
one, of a sealed memory file with the same bytes, so `mmap`, `sendfile` and `numpy.fromfile` work. Not for writing.
"""

import fcntl
import io
import os
from typing import Any

_SEALS = fcntl.F_ADD_SEALS if hasattr(fcntl, "F_ADD_SEALS") else None
_READING_MODES = frozenset({"r", "rb", "br", "rt", "tr"})
READING = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)


def memory_file(data: bytes, name: str) -> int:
    """A file number at the start of these bytes; nobody can change them, as nobody could change the original."""
    # the name is for people who look into /proc; the kernel takes 249 bytes of it
    fd = os.memfd_create(
        os.fsencode(name)[-200:].decode("utf-8", "replace")[-100:], os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    )
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(fd, rest) :]
        os.lseek(fd, 0, os.SEEK_SET)
        if _SEALS is not None:
            fcntl.fcntl(fd, _SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(fd)
        raise
    return fd


class PackedFile(io.BytesIO):
    """What `io.FileIO` is to a real file: the lowest layer, readable and seekable."""

    closefd = True
    mode = "rb"

    def __init__(self, data: bytes, name: Any) -> None:
        # a bytes object is taken over, not copied
        super().__init__(data)
        self.name = name
        self._fd = -1

    def fileno(self) -> int:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        if self._fd < 0:
            self._fd = memory_file(self.getvalue(), os.fsdecode(self.name))
            os.lseek(self._fd, self.tell(), os.SEEK_SET)
        return self._fd

    def close(self) -> None:
        super().close()
        # also called for an object whose making failed half-way
        fd, self._fd = getattr(self, "_fd", -1), -1
        if fd >= 0:
            os.close(fd)

    def readall(self) -> bytes:
        return self.read()

    def writable(self) -> bool:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        return False

    def write(self, _data: Any) -> int:
        raise io.UnsupportedOperation("write")

    def writelines(self, _lines: Any) -> None:
        raise io.UnsupportedOperation("write")

    def truncate(self, _size: int | None = None) -> int:
        raise io.UnsupportedOperation("truncate")

    def __repr__(self) -> str:
        return f"<topout.PackedFile name={self.name!r} mode='rb'>"


def is_plain_reading(mode: Any) -> bool:
    """Whether a mode of `open` asks to read and nothing else; anything odd is left to the real `open`."""
    return isinstance(mode, str) and mode in _READING_MODES


def layered(
    raw: PackedFile, mode: str, buffering: int, *, encoding: str | None, errors: str | None, newline: str | None
) -> Any:
    """The layers that the real `open` would put around a file."""
    is_text = "b" not in mode
    if buffering == 0:
        if is_text:
            raise ValueError("can't have unbuffered text I/O")
        return raw
    buffered = io.BufferedReader(raw, buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE)
    if not is_text:
        return buffered
    text = io.TextIOWrapper(buffered, io.text_encoding(encoding), errors, newline, buffering == 1)
    # as `open` does; a TextIOWrapper has no mode of its own
    text.mode = mode  # type: ignore[misc]
    return text
