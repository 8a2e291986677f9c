"""NumPy files: the rows of a .npy, or of all arrays of a .npz or of a folder of .npy files that are equally long.

Rows are read where they lie, a stored .npz included; a compressed one is read from its beginning for each range. Object
arrays are refused, since reading them would mean unpickling. A folder is taken only when asked for by name: whether its
files are columns or samples cannot be told.
"""

import struct
import zipfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from topout.packs.fields import Field, Sample
from topout.packs.foreign.array_rows import row_field, row_value
from topout.packs.foreign.columns import check_columns
from topout.packs.foreign.data_files import DataFile, find_files, fingerprint, none_found
from topout.packs.foreign.file_reader import check_unchanged
from topout.packs.foreign.npy import read_npy_head
from topout.packs.foreign.numbered import NumberedNames
from topout.packs.sources import BadEntry, Listed, SourceOptions
from topout.schema.errors import TopoutError

_BLOCK_BYTES = 8 << 20
_FAULTS = (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error, struct.error)
"""What damaged archives raise; NotImplementedError, of an unknown compression, is a RuntimeError."""


def recognises(path: Path) -> bool:
    return path.is_file() and path.suffix.lower() in (".npy", ".npz")


def open_listing(path: Path, options: SourceOptions) -> "NumpyListing":
    files = find_files(path, lambda name: name.lower().endswith(".npy"))
    if not files:
        raise none_found(path, "NumPy file", "*.npy")
    names = [name for file in files for name in _names(file, path)]
    check_columns(names, options.columns)
    # chosen before they are looked at: what cannot be packed can be left out
    wanted = frozenset(names if options.columns is None else options.columns)
    columns = [column for file in files for column in _columns(file, path, wanted)]
    fields = tuple(_field(column, path, wanted) for column in columns)
    lengths = {column.shape[0] for column in columns}
    if len(lengths) != 1:
        rows = ", ".join(f"{column.name} {column.shape[0]}" for column in columns)
        raise TopoutError(
            f"The arrays of {path} are not equally long.",
            why=f"their rows are {rows or 'none'}",
            do="choose those that belong together with --columns",
        )
    num_rows = lengths.pop()
    return NumpyListing(
        fields=fields,
        names=NumberedNames([("", num_rows)]),
        sizes=np.full(num_rows, sum(column.row_bytes for column in columns), np.int64),
        fingerprint=fingerprint(files),
        classes=None,
        num_files=len(files),
        num_folders=1,
        columns=tuple(columns),
    )


@dataclass(frozen=True, kw_only=True)
class Column:
    """One array on disk: its items begin at `offset` of the file, or of a compressed member of it."""

    name: str
    file: DataFile
    member: str | None
    """Of a .npz, when it is compressed."""
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_fortran: bool

    @property
    def row_bytes(self) -> int:
        return int(np.prod(self.shape[1:], dtype=object)) * self.dtype.itemsize


@dataclass(frozen=True, kw_only=True)
class NumpyListing(Listed):
    columns: tuple[Column, ...]

    def read_range(self, start: int, stop: int) -> Iterator[Sample | BadEntry]:
        with ExitStack() as stack:
            try:
                readers = [_Reader(column, start, stack) for column in self.columns]
            except _FAULTS as error:
                yield from self._lost(start, stop, error)
                return
            num_rows = max(1, _BLOCK_BYTES // max(1, sum(column.row_bytes for column in self.columns)))
            for first in range(start, stop, num_rows):
                last = min(first + num_rows, stop)
                try:
                    blocks = [reader.rows(first, last) for reader in readers]
                except _FAULTS as error:
                    # a stream that failed cannot be read on from, so the rest of the range is lost with it
                    yield from self._lost(first, stop, error)
                    return
                for row in range(last - first):
                    yield {
                        field.name: row_value(field, block[row])
                        for field, block in zip(self.fields, blocks, strict=True)
                    }

    def _lost(self, start: int, stop: int, error: Exception) -> Iterator[BadEntry]:
        for row in range(start, stop):
            yield BadEntry(number=row, name=self.names[row], reason=str(error))


class _Reader:
    """Rows of one array, asked for in order."""

    def __init__(self, column: Column, start: int, stack: ExitStack) -> None:
        self._column = column
        check_unchanged(column.file, column.file.path.stat())
        self._stream: IO[bytes] | None = None
        if column.member is not None:
            archive = stack.enter_context(zipfile.ZipFile(column.file.path))
            self._stream = stack.enter_context(archive.open(column.member))
            self._stream.seek(column.offset + start * column.row_bytes)

    def rows(self, first: int, last: int) -> NDArray[Any]:
        column = self._column
        shape = (last - first, *column.shape[1:])
        if column.is_fortran or self._stream is None:
            mapped = np.memmap(
                column.file.path, column.dtype, "r", column.offset, column.shape, "F" if column.is_fortran else "C"
            )
            return np.array(mapped[first:last])
        wanted_bytes = (last - first) * column.row_bytes
        data = self._stream.read(wanted_bytes)
        if len(data) != wanted_bytes:
            raise ValueError(f"array {column.name!r} ends before row {last}")
        return np.frombuffer(data, column.dtype).reshape(shape)


def _names(file: DataFile, source: Path) -> list[str]:
    if not _is_archive(file):
        return ["data" if file.path == source else file.stem]
    try:
        with zipfile.ZipFile(file.path) as archive:
            return [_array_name(info) for info in archive.infolist()]
    except _FAULTS as error:
        raise _unreadable(file, error, ()) from error


def _columns(file: DataFile, source: Path, wanted: Collection[str]) -> list[Column]:
    try:
        if _is_archive(file):
            return _archived_columns(file, wanted)
        [name] = _names(file, source)
        if name not in wanted:
            return []
        with file.path.open("rb") as stream:
            return [_column(name, file, stream, start=0, size_bytes=file.size_bytes)]
    except _FAULTS as error:
        raise _unreadable(file, error, wanted) from error


def _is_archive(file: DataFile) -> bool:
    return file.name.lower().endswith(".npz")


def _array_name(info: zipfile.ZipInfo) -> str:
    return info.filename.removesuffix(".npy")


def _archived_columns(file: DataFile, wanted: Collection[str]) -> list[Column]:
    columns = []
    with zipfile.ZipFile(file.path) as archive:
        for info in archive.infolist():
            name = _array_name(info)
            if name not in wanted:
                continue
            with archive.open(info) as stream:
                if info.compress_type != zipfile.ZIP_STORED:
                    columns.append(
                        _column(name, file, stream, start=0, size_bytes=info.file_size, member=info.filename)
                    )
                    continue
            with file.path.open("rb") as plain:
                start = _stored_offset(plain, info)
                plain.seek(start)
                columns.append(_column(name, file, plain, start=start, size_bytes=info.file_size))
    return columns


def _stored_offset(stream: IO[bytes], info: zipfile.ZipInfo) -> int:
    """Behind the member's own head, whose name and extra field may be longer than the directory's."""
    stream.seek(info.header_offset)
    head = stream.read(30)
    if len(head) != 30 or head[:4] != b"PK\3\4":
        raise ValueError(f"the head of {info.filename!r} is damaged")
    return info.header_offset + 30 + int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")


def _column(
    name: str, file: DataFile, stream: IO[bytes], *, start: int, size_bytes: int, member: str | None = None
) -> Column:
    try:
        shape, is_fortran, dtype = read_npy_head(stream)
    except ValueError as error:
        raise ValueError(f"array {name!r}: {error}") from error
    offset = stream.tell()
    if not shape:
        raise ValueError(f"array {name!r} is a single value, without rows")
    if offset - start + dtype.itemsize * int(np.prod(shape, dtype=object)) > size_bytes:
        raise ValueError(f"array {name!r} is shorter than its shape {shape} asks for")
    if is_fortran and len(shape) > 1 and member is not None:
        raise ValueError(f"array {name!r} is stored by columns and compressed, so its rows lie apart")
    return Column(
        name=name,
        file=file,
        member=member,
        offset=offset,
        shape=shape,
        dtype=dtype,
        is_fortran=is_fortran and len(shape) > 1,
    )


def _unreadable(file: DataFile, error: Exception, wanted: Collection[str]) -> TopoutError:
    do = _others(wanted) + "check the file with numpy.load, or save it again"
    return TopoutError(f"{file.path} cannot be read.", why=str(error), do=do)


def _others(wanted: Collection[str]) -> str:
    return "choose the others with --columns; or " if len(wanted) > 1 else ""


def _field(column: Column, source: Path, wanted: Collection[str]) -> Field:
    try:
        return row_field(column.name, column.shape[1:], column.dtype)
    except ValueError as error:
        raise TopoutError(
            f"An array of {source} cannot be packed.",
            why=str(error),
            do=_others(wanted) + "convert it to a plain numeric type",
        ) from error
