"""The records of a batch side by side in memory, with index rows of their own: a small shard without a file.

What reads records by address (the native library) reads staged and remote packs through this. Each record was verified
when it was read; the new rows carry checksums over the new places, so it can be verified again. Not for packs whose
shards are all near: those are read where they lie.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topout.packs.checksum import crc32c
from topout.packs.layout import HEADER_BYTES, padding, row_crc
from topout.packs.pack import Pack

Map = Callable[[Callable[[int], memoryview], Iterable[int]], Iterable[memoryview]]
"""The built-in `map`, or an executor's: reads of a slow path overlap then."""


@dataclass(frozen=True, kw_only=True)
class BatchRecords:
    """Sample k of the batch is row k, in shard 0."""

    rows: NDArray[Any]
    data: NDArray[np.uint8]

    @property
    def data_end(self) -> int:
        return len(self.data)


def batch_records(pack: Pack, numbers: NDArray[np.int64], map_: Map = map) -> BatchRecords:
    """Raises DamagedSample for a sample that is good nowhere."""
    records = list(map_(pack.record, numbers.tolist()))
    lengths = np.array([len(record) for record in records], dtype=np.int64)
    ends = HEADER_BYTES + np.cumsum(lengths + [padding(int(length)) for length in lengths])
    # records begin after where a header would be, as in any shard: smaller offsets are refused
    data = np.zeros(int(ends[-1]) if len(ends) else HEADER_BYTES, dtype=np.uint8)
    rows = pack.index[numbers]
    rows["shard"], rows["length"] = 0, lengths
    rows["offset"] = np.concatenate([[HEADER_BYTES], ends[:-1]])[: len(records)]
    for place, record in enumerate(records):
        start = int(rows["offset"][place])
        data[start : start + len(record)] = np.frombuffer(record, dtype=np.uint8)
        rows["crc"][place] = row_crc(crc32c(record), rows[place].tobytes(), place)
    return BatchRecords(rows=rows, data=data)
