"""Parquet and Arrow files as batches of rows from any place, without holding a file in memory.

Arrow files are mapped; both of their layouts are read (Hugging Face writes streams). Parquet's pages are verified by
their checksums where the writer made any.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topout.packs.foreign.data_files import DataFile
from topout.packs.foreign.packages import require

_ROWS_AT_ONCE = 64
_FILE_MAGIC = b"ARROW1"


@dataclass(frozen=True, kw_only=True)
class ArrowTable:
    schema: Any
    num_rows: int
    sizes: NDArray[np.int64]
    edges: tuple[int, ...]
    """Where row groups or batches begin, and one behind the last: damage reaches no further than one."""


def look(file: DataFile) -> ArrowTable:
    """Schema and sizes, from metadata. Raises OSError, ValueError and Arrow's exceptions."""
    if _is_parquet(file):
        parquet = require("pyarrow.parquet", what="Reading Parquet")
        with parquet.ParquetFile(file.path) as opened:
            metadata = opened.metadata
            groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
            sizes = [np.full(g.num_rows, g.total_byte_size // max(1, g.num_rows), np.int64) for g in groups]
            return _table(opened.schema_arrow, sizes)
    sizes = []
    found = _arrow_batches(file)
    schema, _ = next(found)
    for _, batch in found:
        sizes.append(np.full(batch.num_rows, batch.nbytes // max(1, batch.num_rows), np.int64))
    return _table(schema, sizes)


def batches(file: DataFile, start: int, stop: int, columns: Sequence[str]) -> Iterator[Any]:
    """Rows `start` to `stop` with these columns, in this order of columns, a few rows at a time."""
    found = _parquet_batches(file, start, stop, columns) if _is_parquet(file) else _arrow_rows(file, start, stop)
    for batch in found:
        chosen = batch.select(list(columns))
        for first in range(0, chosen.num_rows, _ROWS_AT_ONCE):
            yield chosen.slice(first, _ROWS_AT_ONCE)


def _is_parquet(file: DataFile) -> bool:
    return file.name.lower().endswith(".parquet")


def _parquet_batches(file: DataFile, start: int, stop: int, columns: Sequence[str]) -> Iterator[Any]:
    parquet = require("pyarrow.parquet", what="Reading Parquet")
    with parquet.ParquetFile(file.path, memory_map=True, page_checksum_verification=True) as opened:
        metadata = opened.metadata
        counts = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
        edges = [0, *np.cumsum(counts).tolist()]
        for group, (first, last) in enumerate(pairwise(edges)):
            if max(start, first) >= min(stop, last):
                continue
            place = first
            for batch in opened.iter_batches(_ROWS_AT_ONCE, row_groups=[group], columns=list(columns)):
                begin, end = max(start, place), min(stop, place + batch.num_rows)
                if begin < end:
                    yield batch.slice(begin - place, end - begin)
                place += batch.num_rows
                if place >= stop:
                    break


def _arrow_rows(file: DataFile, start: int, stop: int) -> Iterator[Any]:
    place = 0
    for _, batch in _arrow_batches(file):
        if batch is None:
            continue
        begin, end = max(start, place), min(stop, place + batch.num_rows)
        if begin < end:
            yield batch.slice(begin - place, end - begin)
        place += batch.num_rows
        if place >= stop:
            return


def _arrow_batches(file: DataFile) -> Iterator[tuple[Any, Any]]:
    """The schema, first without a batch, so that an empty file has one too."""
    pyarrow = require("pyarrow", what="Reading Arrow")
    with pyarrow.memory_map(str(file.path)) as mapped:
        is_file = mapped.read(len(_FILE_MAGIC)) == _FILE_MAGIC
        mapped.seek(0)
        if is_file:
            reader = pyarrow.ipc.open_file(mapped)
            yield reader.schema, None
            for number in range(reader.num_record_batches):
                yield reader.schema, reader.get_batch(number)
        else:
            stream = pyarrow.ipc.open_stream(mapped)
            yield stream.schema, None
            for batch in stream:
                yield stream.schema, batch


def _table(schema: Any, sizes: Sequence[NDArray[np.int64]]) -> ArrowTable:
    joined = np.concatenate(sizes) if sizes else np.empty(0, np.int64)
    edges = tuple(int(edge) for edge in np.cumsum([0, *map(len, sizes)]))
    return ArrowTable(schema=schema, num_rows=len(joined), sizes=joined, edges=edges)
