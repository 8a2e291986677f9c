"""A file of a pack: size, header and trailer checked when it is opened, its contents checked when asked.

Read by system calls, so that a file that is cut short meanwhile, or a disk that fails, is damage with a name. `view`
maps it: as fast as memory, but there the same ends the process. Packs are never altered in place, so that takes a full
disk or a hand.
"""

import contextlib
import errno
import mmap
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from topout.host.open_files import allow_open_files
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
from topout.schema.plain_file import other_kind

Opened = TypeVar("Opened")
_CHUNK_BYTES = 4 << 20
OF_THE_FILE = (errno.EIO, errno.ELOOP, errno.ENXIO)
"""Errors of what lies there, as of a disk that fails; others are of who opens it."""
_MORE_FILES = 1024
"""To be allowed when the files that a process may have open are used up."""


class Descriptor:
    """Closed with the last who holds it: nobody reads by a number that meanwhile is another file's."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


class MappedFile:
    """Opened when first used, by any thread; closed, it opens again when it is used again."""

    def __init__(
        self, pack: Path, path: Path, entry: FileEntry, *, kind: FileKind, pack_id: bytes, number: int = 0
    ) -> None:
        self.path = path
        self.entry = entry
        self.size_bytes = entry.size_bytes
        self._pack = pack
        self._expected = (kind, pack_id, number)
        self._lock = threading.Lock()
        self._descriptor: Descriptor | None = None
        self._view: memoryview | None = None
        self._map: mmap.mmap | None = None
        self._trailer: Trailer | None = None
        self._is_verified = False

    def open(self) -> None:
        """Now, and not when first used; raises DamagedPack where it is not there or not whole."""
        _ = self.descriptor

    @property
    def is_open(self) -> bool:
        """For reading with system calls."""
        return self._descriptor is not None

    @property
    def descriptor(self) -> Descriptor:
        """Whoever keeps it can read on although the file is closed here."""
        descriptor = self._descriptor
        if descriptor is None:
            with self._lock:
                descriptor = self._descriptor = self._descriptor or self._opened()
        return descriptor

    @property
    def view(self) -> memoryview:
        """The whole file, mapped; a map has a descriptor of its own, so none is left open beside it."""
        view = self._view
        if view is None:
            with self._lock:
                view = self._view = self._mapped() if self._view is None else self._view
        return view

    @property
    def trailer(self) -> Trailer:
        if self._trailer is None:
            self.open()
        assert self._trailer is not None
        return self._trailer

    def read(self, offset: int, length: int) -> bytes:
        """A part of the file, unverified; raises MisshapenError where it cannot be read."""
        return _read(self.descriptor, offset, length)

    def verify(self) -> None:
        """Every byte before the trailer, once."""
        if self._is_verified:
            return
        with self._lock:
            descriptor = self._descriptor or self._opened()
        crc, end = 0, self.size_bytes - TRAILER_BYTES
        try:
            for start in range(0, end, _CHUNK_BYTES):
                crc = crc32c(_read(descriptor, start, min(_CHUNK_BYTES, end - start)), crc)
        except MisshapenError as error:
            raise self._damage(str(error)) from error
        if crc != self.entry.data_crc:  # which is also the trailer's
            raise self._damage("its bytes do not match the checksum in its trailer")
        self._is_verified = True

    def rest(self) -> None:
        """Closes what `read` has opened, until it is used again; a map stays."""
        self._descriptor = None

    def close(self) -> None:
        with self._lock:
            if self._view is not None and self._map is not None:
                self._view.release()
                # somebody may still hold a part of it; the memory goes when they do
                with contextlib.suppress(BufferError):
                    self._map.close()
            self._view = self._map = self._descriptor = self._trailer = None

    def _opened(self) -> Descriptor:
        try:
            # a pipe in its place would be waited for
            kind = other_kind(self.path.stat().st_mode)
            if kind is not None:
                raise self._damage(f"it is {kind}, not a file")
            descriptor = Descriptor(_with_room(lambda: os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)))
        except FileNotFoundError:
            raise DamagedPack(self._pack, f"{self.path} is missing.", "the pack's list of files has it") from None
        except OSError as error:
            if error.errno in OF_THE_FILE:
                raise self._damage(f"it cannot be opened: {error.strerror}") from error
            raise cannot_open(self.path, error) from error
        self._trailer = self._checked(descriptor)
        return descriptor

    def _mapped(self) -> memoryview:
        descriptor = self._descriptor or self._opened()
        try:
            self._map = _with_room(lambda: mmap.mmap(descriptor.number, self.size_bytes, prot=mmap.PROT_READ))
        except OSError as error:
            raise cannot_open(self.path, error) from error
        except ValueError as error:
            raise self._damage(str(error)) from error
        return memoryview(self._map)

    def _checked(self, descriptor: Descriptor) -> Trailer:
        size_bytes = os.fstat(descriptor.number).st_size
        if size_bytes != self.size_bytes:
            way = "cut short" if size_bytes < self.size_bytes else "longer"
            raise self._damage(f"it is {way}: {size_bytes} bytes, not the {self.size_bytes} of the pack's list")
        try:
            header = decode_header(_read(descriptor, 0, HEADER_BYTES))
            trailer = decode_trailer(_read(descriptor, size_bytes - TRAILER_BYTES, TRAILER_BYTES))
        except MisshapenError as error:
            raise self._damage(str(error)) from error
        if (header.kind, header.pack_id, header.number) != self._expected:
            raise self._damage("it belongs to another pack, or to another place in this one")
        if trailer.data_crc != self.entry.data_crc:
            raise self._damage("its checksum is not the one of the pack's list: files of two packs are mixed")
        return trailer

    def _damage(self, why: str) -> DamagedPack:
        return DamagedPack(self._pack, f"{self.path} is damaged.", why)


def cannot_open(path: Path, error: OSError) -> TopoutError:
    return TopoutError(
        f"{path} cannot be opened.",
        why=error.strerror or str(error),
        do="check its permissions and the limit of open files (ulimit -n)",
        exit_code=ExitCode.ENVIRONMENT,
    )


def _read(descriptor: Descriptor, offset: int, length: int) -> bytes:
    try:
        data = os.pread(descriptor.number, length, offset)
        # one call gives at most 2 GiB
        while len(data) < length:
            more = os.pread(descriptor.number, length - len(data), offset + len(data))
            if not more:
                raise MisshapenError("the file was cut short while it was open")
            data += more
    except OSError as error:
        raise MisshapenError(f"the file cannot be read there: {error.strerror or error}") from error
    return data


def _with_room(opening: Callable[[], Opened]) -> Opened:
    """Tried once more where this process's files are used up: the limit can often be raised."""
    try:
        return opening()
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
    allow_open_files(_MORE_FILES)
    return opening()
