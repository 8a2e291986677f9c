"""A pack against the source it was made from: every entry read, made into samples again, and compared.

For packs that stand in for a folder which may have changed since. What was left out when it was packed, and still
cannot be taken, is no difference. Reads the whole source; whether the pack itself is whole `check` says.
"""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topout.packs.layout import column_name
from topout.packs.manifest import SKIPPED_NAME
from topout.packs.pack import Pack, open_pack
from topout.packs.packing.plan import cut
from topout.packs.packing.shard_maker import Record, ShardMaker
from topout.packs.repair import maker_for
from topout.packs.sources import Listing
from topout.packs.targets import NoProgress, Progress
from topout.schema.errors import TopoutError

ONLY_IN_SOURCE, ONLY_IN_PACK, DIFFERENT = "only in source", "only in pack", "different"
_SPAN_BYTES = 64 << 20
"""Of the source, read by one thread at a time."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One name that is not the same on both sides."""

    name: str
    what: str
    """ONLY_IN_SOURCE, ONLY_IN_PACK or DIFFERENT."""
    why: str | None = None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    source: str
    num_entries: int
    differences: tuple[Difference, ...]


def compare_with_source(
    path: Path, source: Path, progress: Progress | None = None, num_threads: int = 2
) -> Comparison:  # fmt: skip
    """Of a whole pack; raises where the source cannot be opened as what the pack was made from."""
    with open_pack(path) as pack:
        if pack.manifest.source is None:
            raise TopoutError(
                f"{path} cannot be compared with {source}.",
                why="it was written from Python, not from files",
                do=f"verify its own bytes: topout data check {path}",
            )
        maker, listing = maker_for(pack.manifest, source)
        comparer = _Comparer(pack, maker, listing, progress or NoProgress())
        differences: list[Difference] = []
        with ThreadPoolExecutor(num_threads, thread_name_prefix="topout-compare") as threads:
            for found in threads.map(comparer.compare, cut(np.asarray(listing.sizes), _SPAN_BYTES)):
                differences += found
        differences += comparer.unseen()
    return Comparison(source=str(source), num_entries=len(listing.names), differences=tuple(differences))


class _Comparer:
    """Several threads may compare spans of entries with one of these."""

    def __init__(self, pack: Pack, maker: ShardMaker, listing: Listing, progress: Progress) -> None:
        self._pack = pack
        self._maker = maker
        self._listing = listing
        self._progress = progress
        self._left_out = _left_out(pack)
        self._seen = np.zeros(len(pack), bool)

    def compare(self, span: tuple[int, int]) -> list[Difference]:
        differences: list[Difference] = []
        likely = 0
        for entry, made in self._maker.all_records(span):
            if isinstance(made, str):
                differences += self._bad(self._listing.names[entry], made)
            else:
                for record in made:
                    number = self._number_of(record[0], likely)
                    differences += self._record(record, number)
                    likely = likely if number is None else number + 1
            self._progress.add(1, int(self._listing.sizes[entry]))
        return differences

    def unseen(self) -> Iterator[Difference]:
        for number in np.flatnonzero(~self._seen).tolist():
            yield Difference(name=self._pack.name(number), what=ONLY_IN_PACK)

    def _number_of(self, name: str, likely: int) -> int | None:
        # both are mostly in the same order, and a look costs less than a search
        if likely < len(self._pack) and self._pack.name(likely) == name:
            return likely
        return self._pack.find(name)

    def _bad(self, name: str, why: str) -> Iterator[Difference]:
        if name in self._left_out:
            return
        number = self._pack.find(name)
        if number is None:
            yield Difference(name=name, what=ONLY_IN_SOURCE, why=why)
        else:
            self._seen[number] = True
            yield Difference(name=name, what=DIFFERENT, why=why)

    def _record(self, record: Record, number: int | None) -> Iterator[Difference]:
        name, parts, scalars, _ = record
        if number is None:
            yield Difference(name=name, what=ONLY_IN_SOURCE)
            return
        self._seen[number] = True
        fields = [*self._other_scalars(number, scalars), *self._other_values(number, b"".join(parts))]
        if fields:
            yield Difference(name=name, what=DIFFERENT, why=f"{', '.join(fields)} differ{'s' * (len(fields) == 1)}")

    def _other_scalars(self, number: int, scalars: Sequence[int | float]) -> Iterator[str]:
        row = self._pack.index[number]
        for field, value in zip(self._pack.layout.scalars, scalars, strict=True):
            packed = row[column_name(field)]
            # as bytes: a float that is not a number equals nothing
            if packed.tobytes() != np.array(value, packed.dtype).tobytes():
                yield field.name

    def _other_values(self, number: int, made: bytes) -> list[str]:
        packed = self._pack.record(number)
        if packed == made:
            return []
        # another version of a codec may store the same values otherwise
        layout = self._pack.layout
        one, other = layout.decode(packed), layout.decode(memoryview(made))
        return [name for name, value in one.items() if _comparable(value) != _comparable(other[name])]


def _comparable(value: Any) -> object:
    if isinstance(value, np.ndarray):
        array: NDArray[Any] = value
        return array.dtype, array.shape, array.tobytes()
    return value if isinstance(value, bytes) else repr(value)


def _left_out(pack: Pack) -> frozenset[str]:
    if pack.manifest.skipped is None:
        return frozenset()
    lines = (pack.path / SKIPPED_NAME).read_text(encoding="ascii").splitlines()
    return frozenset(json.loads(line)["name"] for line in lines)
