"""A descriptor that is kept open inside somebody else's process, for as long as it is ours.

A script may close all descriptors (`os.closerange(3, 256)`), and the next file it opens gets our number. So whoever
writes once in a while looks first whether the number still means the file it was opened for.
"""

from __future__ import annotations

import errno
import os


class HeldFile:
    """One open descriptor. Raises OSError where it cannot be written, or is not ours any more."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._identity = _identity(fd)

    @property
    def is_ours(self) -> bool:
        try:
            return _identity(self._fd) == self._identity
        except OSError:
            return False

    def write(self, data: bytes) -> None:
        if not self.is_ours:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    def close(self) -> None:
        """Says nothing of what could not be written: a full disk may tell it only now, and again."""
        try:
            if self.is_ours:
                os.close(self._fd)
        except OSError:
            return


def _identity(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino
