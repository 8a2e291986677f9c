"""Parquet and Arrow files, one or a folder of them, Hugging Face's data sets among them: each row a sample.

Images are columns of `{bytes, path}` or of bytes; lists of numbers are arrays, what is nested deeper is JSON. Rows are
read in small batches of one row group; sizes are averages over it, since Parquet knows no others.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from topout.packs.fields import Sample
from topout.packs.foreign.arrow_columns import Column, class_names, column_value, columns_of
from topout.packs.foreign.arrow_files import ArrowTable, batches, look
from topout.packs.foreign.columns import check_columns, chosen_fields
from topout.packs.foreign.data_files import (
    DataFile,
    find_files,
    fingerprint,
    is_mostly,
    none_found,
    num_folders,
    prefixes,
)
from topout.packs.foreign.file_reader import check_unchanged
from topout.packs.foreign.numbered import NumberedNames
from topout.packs.foreign.packages import require
from topout.packs.sources import BadEntry, Listed, SourceOptions
from topout.schema.errors import TopoutError

_EXTENSIONS = (".parquet", ".arrow", ".feather")


def recognises(path: Path) -> bool:
    # a data set saved by Hugging Face has its JSON files beside the data
    return is_mostly(path, lambda name: name.lower().endswith((*_EXTENSIONS, "dataset_info.json", "state.json")))


def open_listing(path: Path, options: SourceOptions) -> "ParquetListing":
    files = find_files(path, lambda name: name.lower().endswith(_EXTENSIONS))
    if not files:
        raise none_found(path, "Parquet or Arrow file", "*.parquet, *.arrow or *.feather")
    pyarrow = require("pyarrow", what="Reading Parquet and Arrow")
    tables = []
    for file in files:
        try:
            tables.append(look(file))
        except (OSError, ValueError, pyarrow.ArrowException) as error:
            raise TopoutError(
                f"{file.path} cannot be read.", why=str(error), do="check the file, or write it again"
            ) from error
        if not tables[-1].schema.equals(tables[0].schema):
            raise TopoutError(
                f"{file.path} has other columns than {files[0].path}.",
                why="samples of one pack have the same fields",
                do="pack them apart",
            )
    columns = _columns(path, files, tables, options.columns)
    return ParquetListing(
        fields=tuple(column.field for column in columns),
        names=NumberedNames([(prefix, table.num_rows) for prefix, table in zip(prefixes(files), tables, strict=True)]),
        sizes=np.concatenate([table.sizes for table in tables]),
        fingerprint=fingerprint(files),
        classes=class_names(tables[0].schema),
        num_files=len(files),
        num_folders=num_folders(files),
        files=files,
        starts=tuple(int(start) for start in np.cumsum([0, *(table.num_rows for table in tables)])),
        columns=columns,
        edges=_edges(tables),
    )


@dataclass(frozen=True, kw_only=True)
class ParquetListing(Listed):
    files: tuple[DataFile, ...]
    starts: tuple[int, ...]
    """First entry of each file, and one behind the last."""
    columns: tuple[Column, ...]
    edges: tuple[int, ...]
    """Where row groups begin, and one behind the last."""

    def read_range(self, start: int, stop: int) -> Iterator[Sample | BadEntry]:
        for file, (first, last) in zip(self.files, pairwise(self.starts), strict=True):
            begin, end = max(start, first), min(stop, last)
            if begin < end:
                yield from self._read_file(file, first, begin, end)

    def _read_file(self, file: DataFile, first: int, begin: int, end: int) -> Iterator[Sample | BadEntry]:
        pyarrow = require("pyarrow", what="Reading Parquet and Arrow")
        number = begin
        while number < end:
            try:
                check_unchanged(file, file.path.stat())
                for batch in batches(file, number - first, end - first, [column.name for column in self.columns]):
                    for row in range(batch.num_rows):
                        yield self._sample(batch, row, number)
                        number += 1
                return
            except (OSError, ValueError, pyarrow.ArrowException) as error:
                # the next row group may be whole
                for lost in range(number, min(end, self.edges[bisect_right(self.edges, number)])):
                    yield BadEntry(number=lost, name=self.names[lost], reason=str(error))
                    number += 1

    def _sample(self, batch: Any, row: int, number: int) -> Sample | BadEntry:
        try:
            return {
                column.field.name: column_value(column, batch.column(place)[row])
                for place, column in enumerate(self.columns)
            }
        except (ValueError, OverflowError) as error:
            return BadEntry(number=number, name=self.names[number], reason=str(error))


def _edges(tables: Sequence[ArrowTable]) -> tuple[int, ...]:
    edges, start = [0], 0
    for table in tables:
        edges += [start + edge for edge in table.edges[1:]]
        start += table.num_rows
    return tuple(edges)


def _columns(
    path: Path, files: Sequence[DataFile], tables: Sequence[ArrowTable], wanted: Sequence[str] | None
) -> tuple[Column, ...]:
    schema = tables[0].schema
    check_columns(schema.names, wanted)
    try:
        columns = columns_of(schema, _some_rows(files, tables), wanted)
    except ValueError as error:
        raise TopoutError(
            f"A column of {path} cannot be packed.", why=str(error), do="choose others with --columns"
        ) from error
    chosen = chosen_fields([column.field for column in columns], wanted)
    return tuple(column for column in columns if column.field in chosen)


def _some_rows(files: Sequence[DataFile], tables: Sequence[ArrowTable]) -> Any | None:
    """The first rows that can be read; None where there are none."""
    pyarrow = require("pyarrow", what="Reading Parquet and Arrow")
    for file, table in zip(files, tables, strict=True):
        for start, stop in pairwise(table.edges):
            with suppress(OSError, ValueError, pyarrow.ArrowException):
                return next(batches(file, start, stop, table.schema.names), None)
    return None
