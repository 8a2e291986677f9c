"""MDS, the folders of MosaicML streaming: index.json and its shards, plain or compressed with zstd, gzip or bzip2.

A shard is verified by its hashes when there are any that Python knows, once, before its samples are read; streaming
itself does so only while downloading. Not for remote folders: bring the shards here first.
"""

import bz2
import hashlib
import mmap
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from topout.packs.fields import Sample
from topout.packs.foreign.columns import chosen_fields
from topout.packs.foreign.data_files import DataFile, find_files, fingerprint
from topout.packs.foreign.mds_layout import Shard, Stored, read_index, read_sample, sample_offsets
from topout.packs.foreign.numbered import NumberedNames
from topout.packs.sources import BadEntry, Listed, SourceOptions
from topout.schema.errors import TopoutError
from topout.schema.plain_file import check_plain

_INDEX = "index.json"
_HEAD_BYTES = 64 << 10


def recognises(path: Path) -> bool:
    try:
        if not (path / _INDEX).is_file():
            return False
        with (path / _INDEX).open("rb") as file:
            return b'"shards"' in file.read(_HEAD_BYTES)
    except OSError:
        return False


def open_listing(path: Path, options: SourceOptions) -> "MdsListing":
    shards = _read_index(path)
    fields = [column.field for column in shards[0].columns]
    names = [(shard.raw.basename.removesuffix(".mds"), shard.num_samples) for shard in shards]
    sizes = [np.full(s.num_samples, s.raw.size_bytes // max(1, s.num_samples), np.int64) for s in shards]
    files = [file for shard in shards for file in _files(path, shard)]
    return MdsListing(
        fields=chosen_fields(fields, options.columns),
        names=NumberedNames(names),
        sizes=np.concatenate(sizes),
        fingerprint=fingerprint([*find_files(path / _INDEX, lambda _: True), *files]),
        classes=None,
        num_files=1 + len(files),
        num_folders=1,
        path=path,
        shards=shards,
        starts=tuple(int(start) for start in np.cumsum([0, *(shard.num_samples for shard in shards)])),
    )


class _Kept:
    """The shard loaded last: reading samples one by one must not decompress it for each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: tuple[int, bytes | mmap.mmap] | None = None

    def get(self, number: int, load: Callable[[], bytes | mmap.mmap]) -> bytes | mmap.mmap:
        with self._lock:
            last = self._last
        if last is not None and last[0] == number:
            return last[1]
        data = load()
        with self._lock:
            self._last = number, data
        return data


@dataclass(frozen=True, kw_only=True)
class MdsListing(Listed):
    path: Path
    shards: tuple[Shard, ...]
    starts: tuple[int, ...]
    """First entry of each shard, and one behind the last."""
    kept: _Kept = field(default_factory=_Kept, repr=False)

    def read_range(self, start: int, stop: int) -> Iterator[Sample | BadEntry]:
        for number, (first, last) in enumerate(pairwise(self.starts)):
            begin, end = max(start, first), min(stop, last)
            if begin < end:
                yield from self._read_shard(number, begin - first, end - first)

    def _read_shard(self, number: int, begin: int, end: int) -> Iterator[Sample | BadEntry]:
        first, shard = self.starts[number], self.shards[number]
        wanted = {each.name for each in self.fields}
        try:
            data = memoryview(self.kept.get(number, lambda: _load(self.path, shard)))
            offsets = sample_offsets(data, shard.num_samples, len(data))
        except (OSError, ValueError) as error:
            for row in range(first + begin, first + end):
                reason = f"shard {shard.raw.basename} cannot be read: {error}"
                yield BadEntry(number=row, name=self.names[row], reason=reason)
            return
        for row in range(begin, end):
            try:
                sample = read_sample(shard.columns, data[offsets[row] : offsets[row + 1]])
                yield {name: value for name, value in sample.items() if name in wanted}
            except (ValueError, OverflowError) as error:
                yield BadEntry(number=first + row, name=self.names[first + row], reason=str(error))


def _read_index(path: Path) -> tuple[Shard, ...]:
    check_plain(path / _INDEX)
    try:
        shards = read_index((path / _INDEX).read_bytes())
        if not shards:
            raise ValueError("it lists no shards")
        if any(shard.columns != shards[0].columns for shard in shards):
            raise ValueError("its shards have different columns")
    except (OSError, ValueError) as error:
        raise TopoutError(
            f"{path} cannot be read as MDS.",
            why=str(error),
            do="check index.json, or write the folder again with MDSWriter",
        ) from error
    return shards


def _files(path: Path, shard: Shard) -> list[DataFile]:
    """The shard's file, if it is there."""
    stored = _present(path, shard)
    return [] if stored is None else list(find_files(path / stored.basename, lambda _: True))


def _present(path: Path, shard: Shard) -> Stored | None:
    for stored in (shard.raw, shard.compressed):
        if stored is not None and (path / stored.basename).is_file():
            return stored
    return None


def _load(path: Path, shard: Shard) -> bytes | mmap.mmap:
    """The shard's bytes, verified and decompressed. Raises OSError and ValueError."""
    stored = _present(path, shard)
    if stored is None:
        raise ValueError("it is missing")
    with (path / stored.basename).open("rb") as file:
        size_bytes = (path / stored.basename).stat().st_size
        if size_bytes != stored.size_bytes or not size_bytes:
            raise ValueError(f"it has {size_bytes} bytes, its index says {stored.size_bytes}")
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    _verify(data, stored)
    if stored is shard.raw:
        return data
    with data:
        raw = _decompress(data, shard.compression, shard.raw.size_bytes)
    _verify(raw, shard.raw)
    return raw


def _verify(data: bytes | mmap.mmap, stored: Stored) -> None:
    for name, expected in stored.hashes.items():
        is_known = name in hashlib.algorithms_available and not name.startswith("shake")
        if is_known and hashlib.new(name, data).hexdigest() != expected:
            raise ValueError(f"its bytes do not match their {name}")


def _decompress(data: mmap.mmap, compression: str | None, size_bytes: int) -> bytes:
    """Never more than the index promises, whatever the stream says."""
    try:
        if compression == "zstd":
            import zstandard

            # typed for files and bytes; it takes whatever is a buffer
            with zstandard.ZstdDecompressor().stream_reader(data) as stream:  # type: ignore[arg-type]
                raw = bytes(stream.read(size_bytes + 1))
        elif compression == "gz":
            raw = zlib.decompressobj(wbits=31).decompress(data, size_bytes + 1)
        elif compression == "bz2":
            raw = bz2.BZ2Decompressor().decompress(data, size_bytes + 1)
        else:
            raise ValueError(f"its compression {compression} is not one of zstd, gz, bz2")
    # each library has an error of its own, and they share no class
    except Exception as error:
        raise ValueError(f"it cannot be decompressed: {error}") from error
    if len(raw) != size_bytes:
        raise ValueError(f"decompressed it has {len(raw)} bytes, its index says {size_bytes}")
    return raw
