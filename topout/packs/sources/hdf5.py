"""HDF5 files, one or a folder of them: datasets of the same length are columns, their first axis counts the samples.

Byte strings and rows of varying length (`vlen`) of uint8 are bytes, JPEG or PNG. HDF5 verifies bytes only where the
writer asked for it (`fletcher32`). Not for files in which every sample is a group of its own.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from topout.packs.fields import Sample
from topout.packs.foreign.data_files import (
    DataFile,
    find_files,
    fingerprint,
    is_mostly,
    none_found,
    num_folders,
    prefixes,
)
from topout.packs.foreign.field_table import read_table
from topout.packs.foreign.file_reader import check_unchanged
from topout.packs.foreign.hdf5_columns import CLASSES_AND_FIELDS, NAMES, Column, column_value, find_columns, row_bytes
from topout.packs.foreign.numbered import NumberedNames
from topout.packs.foreign.packages import require
from topout.packs.given_path import begins_with
from topout.packs.sources import BadEntry, Listed, SourceOptions
from topout.schema.errors import TopoutError

_EXTENSIONS = (".h5", ".hdf5", ".hdf", ".he5")
_MAGIC = b"\x89HDF\r\n\x1a\n"
_BLOCK_BYTES = 8 << 20
_NAMES_AT_ONCE = 4096


def recognises(path: Path) -> bool:
    return begins_with(path, _MAGIC) or is_mostly(path, lambda name: name.lower().endswith(_EXTENSIONS))


def open_listing(path: Path, options: SourceOptions) -> "Hdf5Listing":
    files = find_files(path, lambda name: name.lower().endswith(_EXTENSIONS))
    if not files:
        raise none_found(path, "HDF5 file", "*.h5 or *.hdf5")
    require("h5py", what="Reading HDF5")
    tables = [_look(file, options.columns) for file in files]
    first = tables[0]
    for file, table in zip(files, tables, strict=True):
        if [column.field for column in table.columns] != [column.field for column in first.columns]:
            raise TopoutError(
                f"{file.path} has other columns than {files[0].path}.",
                why="samples of one pack have the same fields",
                do="pack them apart, or choose columns they share with --columns",
            )
    is_named = all(table.names is not None for table in tables)
    before = prefixes(files) if len(files) > 1 else [""]
    numbered = NumberedNames([(prefix, table.num_rows) for prefix, table in zip(before, tables, strict=True)])
    return Hdf5Listing(
        fields=tuple(column.field for column in first.columns),
        names=[name for table in tables for name in table.names or ()] if is_named else numbered,
        sizes=np.concatenate([np.full(table.num_rows, table.row_bytes, np.int64) for table in tables]),
        fingerprint=fingerprint(files),
        classes=first.classes,
        num_files=len(files),
        num_folders=num_folders(files),
        files=files,
        starts=tuple(int(start) for start in np.cumsum([0, *(table.num_rows for table in tables)])),
        columns=first.columns,
        row_bytes=max(table.row_bytes for table in tables),
    )


@dataclass(frozen=True, kw_only=True)
class Table:
    columns: tuple[Column, ...]
    num_rows: int
    row_bytes: int
    names: list[str] | None
    classes: tuple[str, ...] | None


@dataclass(frozen=True, kw_only=True)
class Hdf5Listing(Listed):
    files: tuple[DataFile, ...]
    starts: tuple[int, ...]
    """First entry of each file, and one behind the last."""
    columns: tuple[Column, ...]
    row_bytes: int

    def read_range(self, start: int, stop: int) -> Iterator[Sample | BadEntry]:
        for file, (first, last) in zip(self.files, pairwise(self.starts), strict=True):
            begin, end = max(start, first), min(stop, last)
            if begin < end:
                yield from self._read_file(file, first, begin, end)

    def _read_file(self, file: DataFile, first: int, begin: int, end: int) -> Iterator[Sample | BadEntry]:
        h5py = require("h5py", what="Reading HDF5")
        try:
            check_unchanged(file, file.path.stat())
            opened = h5py.File(file.path, "r")
        except (OSError, ValueError) as error:
            for number in range(begin, end):
                yield BadEntry(number=number, name=self.names[number], reason=str(error))
            return
        with opened:
            num_rows = max(1, _BLOCK_BYTES // max(1, self.row_bytes))
            for block in range(begin, end, num_rows):
                yield from self._read_block(opened, first, block, min(block + num_rows, end))

    def _read_block(self, opened: Any, first: int, begin: int, end: int) -> Iterator[Sample | BadEntry]:
        try:
            rows = {column.path: opened[column.path][begin - first : end - first] for column in self.columns}
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            if end - begin > 1:  # one bad chunk must not take its neighbours along
                for number in range(begin, end):
                    yield from self._read_block(opened, first, number, number + 1)
            else:
                yield BadEntry(number=begin, name=self.names[begin], reason=str(error))
            return
        for row in range(end - begin):
            try:
                yield {column.field.name: column_value(column, rows[column.path][row]) for column in self.columns}
            except ValueError as error:
                yield BadEntry(number=begin + row, name=self.names[begin + row], reason=str(error))


def _look(file: DataFile, wanted: Sequence[str] | None) -> Table:
    h5py = require("h5py", what="Reading HDF5")
    try:
        with h5py.File(file.path, "r") as opened:
            told = opened.attrs.get(CLASSES_AND_FIELDS)
            fields, classes = read_table(told, str(file.path)) if isinstance(told, str) else (None, None)
            columns = _equally_long(file, find_columns(opened, fields, wanted), is_asked=wanted is not None)
            num_rows = columns[0].num_rows
            names = _names(opened, num_rows)
            fixed_bytes = sum(row_bytes(column) for column in columns)
            varying_bytes = 0
            if any(column.is_varying for column in columns):
                varying_bytes = max(0, file.size_bytes - fixed_bytes * num_rows) // max(1, num_rows)
            return Table(
                columns=tuple(columns),
                num_rows=num_rows,
                row_bytes=fixed_bytes + varying_bytes,
                names=names,
                classes=classes,
            )
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise TopoutError(
            f"{file.path} cannot be read as HDF5.", why=str(error), do="check the file with h5ls or h5dump"
        ) from error


def _equally_long(file: DataFile, columns: Sequence[Column], *, is_asked: bool) -> list[Column]:
    lengths = Counter(column.num_rows for column in columns)
    if len(lengths) == 1:
        return list(columns)
    rows = ", ".join(f"{column.field.name} {column.num_rows}" for column in columns)
    why = f"their rows are {rows}" if rows else "it has no dataset with rows that a pack can hold"
    raise TopoutError(
        f"The datasets of {file.path} are not columns of one table.",
        why=why,
        do="choose others with --columns" if is_asked else "choose those that belong together with --columns",
    )


def _names(opened: Any, num_rows: int) -> list[str] | None:
    dataset = opened.get(NAMES)
    if dataset is None or dataset.shape != (num_rows,):
        return None
    names = []
    for start in range(0, num_rows, _NAMES_AT_ONCE):
        for name in dataset[start : start + _NAMES_AT_ONCE]:
            if not isinstance(name, bytes):
                return None
            names.append(name.decode("utf-8", "surrogateescape"))
    return names
