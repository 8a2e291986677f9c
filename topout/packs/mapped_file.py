"""A file of a pack in memory: mapped, with size, header and trailer checked, its contents checked when asked.

A map reads as fast as memory and costs nothing to open, but a file that is cut short while it is mapped kills the
reader. Packs are never altered in place, so that takes a full disk or a hand; files are checked to be whole before.
"""

import contextlib
import mmap
import os
import threading
from pathlib import Path

from topout.packs.checksum import crc32c
from topout.packs.damage import DamagedPack
from topout.packs.layout import (
    HEADER_BYTES,
    TRAILER_BYTES,
    FileKind,
    MisshapenError,
    Trailer,
    decode_header,
    decode_trailer,
)
from topout.packs.manifest import FileEntry
from topout.schema.errors import ExitCode, TopoutError


class MappedFile:
    """Opened when first used, by any thread."""

    _fd: int | None = None

    def __init__(
        self, pack: Path, path: Path, entry: FileEntry, *, kind: FileKind, pack_id: bytes, number: int = 0
    ) -> None:
        self.path = path
        self.entry = entry
        self.size_bytes = entry.size_bytes
        self._pack = pack
        self._expected = (kind, pack_id, number)
        self._lock = threading.Lock()
        self._view: memoryview | None = None
        self._map: mmap.mmap | None = None
        self._trailer: Trailer | None = None
        self._is_verified = False

    def __del__(self) -> None:
        # the map goes with the last who reads it; a descriptor would stay, and keep the room of a file that is deleted
        if self._fd is not None:
            os.close(self._fd)

    def open(self) -> None:
        """Now, and not when first used; raises DamagedPack where it is not there or not whole."""
        self._open()

    @property
    def view(self) -> memoryview:
        """The whole file."""
        return self._view if self._view is not None else self._open()

    @property
    def trailer(self) -> Trailer:
        if self._trailer is None:
            self._open()
        assert self._trailer is not None
        return self._trailer

    @property
    def fd(self) -> int:
        """For those who read with system calls."""
        if self._fd is None:
            self._open()
        assert self._fd is not None
        return self._fd

    def verify(self) -> None:
        """Every byte before the trailer, once."""
        if not self._is_verified:
            if crc32c(self.view[: self.size_bytes - TRAILER_BYTES]) != self.trailer.data_crc:
                raise self._damage("its bytes do not match the checksum in its trailer")
            self._is_verified = True

    def close(self) -> None:
        with self._lock:
            if self._view is not None and self._map is not None:
                self._view.release()
                # somebody may still hold a part of it; the memory goes when they do
                with contextlib.suppress(BufferError):
                    self._map.close()
            if self._fd is not None:
                os.close(self._fd)
            self._view = self._map = self._fd = self._trailer = None

    def _open(self) -> memoryview:
        with self._lock:
            if self._view is not None:
                return self._view
            try:
                fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                raise DamagedPack(self._pack, f"{self.path} is missing.", "the pack's list of files has it") from None
            except OSError as error:
                raise TopoutError(
                    f"{self.path} cannot be opened.",
                    why=error.strerror or str(error),
                    do="check its permissions and the limit of open files (ulimit -n)",
                    exit_code=ExitCode.ENVIRONMENT,
                ) from error
            try:
                self._trailer = self._checked(fd)
                self._map = mmap.mmap(fd, self.size_bytes, prot=mmap.PROT_READ)
            except BaseException:
                os.close(fd)
                raise
            self._fd = fd
            self._view = memoryview(self._map)
            return self._view

    def _checked(self, fd: int) -> Trailer:
        size_bytes = os.fstat(fd).st_size
        if size_bytes != self.size_bytes:
            way = "cut short" if size_bytes < self.size_bytes else "longer"
            raise self._damage(f"it is {way}: {size_bytes} bytes, not the {self.size_bytes} of the pack's list")
        try:
            header = decode_header(os.pread(fd, HEADER_BYTES, 0))
            trailer = decode_trailer(os.pread(fd, TRAILER_BYTES, size_bytes - TRAILER_BYTES))
        except MisshapenError as error:
            raise self._damage(str(error)) from error
        if (header.kind, header.pack_id, header.number) != self._expected:
            raise self._damage("it belongs to another pack, or to another place in this one")
        if trailer.data_crc != self.entry.data_crc:
            raise self._damage("its checksum is not the one of the pack's list: files of two packs are mixed")
        return trailer

    def _damage(self, why: str) -> DamagedPack:
        return DamagedPack(self._pack, f"{self.path} is damaged.", why)
