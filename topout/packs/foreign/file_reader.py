"""Reads at offsets of several files, one of them open at a time, as samples in order need it.

A file that is not as it was when the source was listed is refused: what is packed must be what was planned. Each
thread makes its own.
"""

import os
from collections.abc import Sequence
from typing import Self

from topout.packs.foreign.data_files import DataFile


class FileReader:
    def __init__(self, files: Sequence[DataFile]) -> None:
        self._files = files
        self._number = -1
        self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def descriptor(self, number: int) -> int:
        """Raises OSError, or ValueError when the file has changed."""
        if number != self._number:
            self._close()
            self._descriptor = os.open(self._files[number].path, os.O_RDONLY | os.O_CLOEXEC)
            self._number = number
            check_unchanged(self._files[number], os.fstat(self._descriptor))
        return self._descriptor

    def read(self, number: int, offset: int, size_bytes: int) -> bytes:
        """All the bytes asked for; raises OSError and ValueError."""
        descriptor = self.descriptor(number)
        parts = []
        while size_bytes:
            part = os.pread(descriptor, size_bytes, offset)
            if not part:
                raise ValueError(f"{self._files[number].name} ends within it")
            parts.append(part)
            offset, size_bytes = offset + len(part), size_bytes - len(part)
        return b"".join(parts) if len(parts) != 1 else parts[0]

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._number = self._descriptor = -1


def check_unchanged(file: DataFile, status: os.stat_result) -> None:
    if (status.st_size, status.st_mtime_ns) != (file.size_bytes, file.modified_ns):
        raise ValueError(f"{file.name} has changed since packing began")
