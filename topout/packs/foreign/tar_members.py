"""The members of a tar archive and where their bytes are, found by the heads alone.

`tarfile` ends quietly at a damaged head and at the joint of two archives; here what it did not see is a fault.
"""

import os
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

NAME_KEY = "TOPOUT.name"
"""Extended header of a sample's first member: the name, where the member's path cannot say it."""
FIELDS_KEY = "TOPOUT.fields"
"""Extended header of the archive: the table of fields."""
_BLOCK_BYTES = 512
_CHUNK_BYTES = 1 << 16


class Member(NamedTuple):
    path: str
    offset: int
    size_bytes: int
    problem: str | None
    name: str | None
    """What the sample is called, where the archive says so."""


@dataclass(frozen=True, kw_only=True)
class Members:
    members: list[Member]
    fault: str | None
    """Why the archive could not be followed to its end; the members before are good."""
    fields: str | None
    """The table of fields of an archive that topout wrote."""


def find_members(path: Path) -> Members:
    members: list[Member] = []
    fault, fields, end = None, None, 0
    with path.open("rb") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        try:
            with tarfile.TarFile(fileobj=_Bounded(file, size_bytes), mode="r", encoding="utf-8") as archive:  # type: ignore[arg-type]
                while (found := archive.next()) is not None:
                    vars(archive)["members"].clear()  # or it keeps them all
                    if archive.offset <= end or found.size < 0:
                        raise tarfile.ReadError(f"the head at byte {found.offset} leads backwards")
                    end = archive.offset
                    if found.isdir():
                        continue
                    members.append(_member(found, size_bytes))
                fields = archive.pax_headers.get(FIELDS_KEY)
                end = archive.offset
        # tarfile guards against few of the things a damaged head can say: any exception is the archive's fault
        except Exception as error:
            fault = f"{type(error).__name__}: {error}"
        if fault is None:
            fault = _fault_at_the_end(file, end, size_bytes)
    return Members(members=members, fault=fault, fields=fields)


def _member(found: tarfile.TarInfo, size_bytes: int) -> Member:
    problem = None
    if not found.isreg():
        problem = "it is a link, or no file at all"
    elif found.sparse is not None:
        problem = "it is a sparse file"
    elif found.offset_data + found.size > size_bytes:
        problem = "the archive ends within it"
    path = found.name.removeprefix("./")
    return Member(path, found.offset_data, found.size, problem, found.pax_headers.get(NAME_KEY))


def _fault_at_the_end(file: BinaryIO, offset: int, size_bytes: int) -> str | None:
    if offset >= size_bytes:
        return "it ends without a mark of its end, so it was probably cut off"
    file.seek(offset)
    position = offset
    while chunk := file.read(_CHUNK_BYTES):
        if chunk.count(0) != len(chunk):
            block = position + (len(chunk) - len(chunk.lstrip(b"\0"))) // _BLOCK_BYTES * _BLOCK_BYTES
            if block == offset:
                return f"the head at byte {offset} is damaged"
            return f"there is more after its end, at byte {block}"
        position += len(chunk)
    return None


class _Bounded:
    """A file whose reads never ask for more than there is: a damaged length must not become an allocation."""

    def __init__(self, file: BinaryIO, size_bytes: int) -> None:
        self.name = None
        self.mode = "rb"
        self._file = file
        self._size_bytes = size_bytes

    def read(self, num_bytes: int = -1) -> bytes:
        left_bytes = max(0, self._size_bytes - self._file.tell())
        return self._file.read(left_bytes if num_bytes < 0 else min(num_bytes, left_bytes))

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        """The file belongs to whoever opened it."""
