"""Every byte of a pack against its checksums: which file, which sample, is not what was written.

Reads everything once, shards in parallel. Not needed for training, where every sample is verified as it is read; it is
for packs that were copied, or lie on a disk that is doubted.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topout.packs.checksum import crc32c
from topout.packs.damage import DamagedPack
from topout.packs.layout import HEADER_BYTES, FileKind, MisshapenError, row_dtype
from topout.packs.manifest import MANIFEST_NAME, Manifest, read_manifest
from topout.packs.mapped_file import OF_THE_FILE, MappedFile, cannot_open
from topout.packs.names import Names
from topout.packs.shard import ShardFile
from topout.packs.targets import NoProgress, Progress
from topout.schema.plain_file import check_plain


@dataclass(frozen=True, kw_only=True)
class Damage:
    """One thing that is wrong."""

    file: str
    why: str
    number: int | None = None
    """Of the sample; None: of no sample, or of the whole file."""
    name: str | None = None


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    num_samples: int
    num_bytes: int
    damages: tuple[Damage, ...]

    @property
    def files(self) -> set[str]:
        return {damage.file for damage in self.damages}


def check_pack(path: Path, progress: Progress | None = None, num_threads: int = 2) -> CheckReport:
    """Raises where there is no pack at all, or a file of it may not be read; damage is reported."""
    try:
        manifest = read_manifest(path)
    except DamagedPack as error:
        return CheckReport(num_samples=0, num_bytes=0, damages=(Damage(file=MANIFEST_NAME, why=error.why),))
    pack_id = bytes.fromhex(manifest.pack_id)
    index = MappedFile(path, path / manifest.index.file, manifest.index, kind=FileKind.INDEX, pack_id=pack_id)
    names = MappedFile(path, path / manifest.names.file, manifest.names, kind=FileKind.NAMES, pack_id=pack_id)
    damages = [*_check_file(index), *_check_file(names), *_check_skipped(path, manifest)]
    bad = {damage.file for damage in damages}
    checker = _ShardChecker(
        path,
        manifest,
        rows=None if manifest.index.file in bad else _rows_of(index, manifest),
        names=None if manifest.names.file in bad else Names(names, manifest.num_samples),
        progress=progress or NoProgress(),
    )
    with ThreadPoolExecutor(num_threads, thread_name_prefix="topout-check") as threads:
        for found in threads.map(checker.check, range(len(manifest.shards))):
            damages += found
    del checker
    index.close()
    names.close()
    num_bytes = sum(entry.size_bytes for entry in (manifest.index, manifest.names, *manifest.shards))
    return CheckReport(num_samples=manifest.num_samples, num_bytes=num_bytes, damages=tuple(damages))


class _ShardChecker:
    """Looks samples up through the index or, where that is damaged, through the shard's own copy of it."""

    def __init__(
        self, path: Path, manifest: Manifest, *, rows: NDArray[Any] | None, names: Names | None, progress: Progress
    ) -> None:
        self._path = path
        self._manifest = manifest
        self._rows = rows
        self._names = names
        self._progress = progress
        self._starts = np.cumsum([0, *(entry.num_samples for entry in manifest.shards)]).tolist()

    def check(self, number: int) -> list[Damage]:
        entry = self._manifest.shards[number]
        pack_id = bytes.fromhex(self._manifest.pack_id)
        shard = ShardFile(self._path, self._path / entry.file, entry, pack_id, number)
        try:
            damages = list(self._damaged_samples(shard))
            if not damages:
                shard.verify()
        except DamagedPack as error:
            damages = [Damage(file=entry.file, why=_why(shard, error))]
        finally:
            shard.close()
        self._progress.add(entry.num_samples, entry.size_bytes)
        return damages

    def _damaged_samples(self, shard: ShardFile) -> Iterator[Damage]:
        start, stop = self._starts[shard.number : shard.number + 2]
        rows = shard.footer(row_dtype(self._manifest.fields)).rows if self._rows is None else self._rows[start:stop]
        for number, row in enumerate(rows, start):
            try:
                shard.record(row, number)
            except MisshapenError as error:
                name = None if self._names is None else self._names[number]
                yield Damage(file=shard.entry.file, why=str(error), number=number, name=name)


def _rows_of(index: MappedFile, manifest: Manifest) -> NDArray[Any]:
    dtype = row_dtype(manifest.fields)
    rows: NDArray[Any] = np.frombuffer(index.view, dtype=dtype, count=manifest.num_samples, offset=HEADER_BYTES)
    return rows


def _check_file(file: MappedFile) -> Iterator[Damage]:
    try:
        file.verify()
    except DamagedPack as error:
        yield Damage(file=file.entry.file, why=_why(file, error))


def _why(file: MappedFile, error: DamagedPack) -> str:
    # the error's first line says that it is missing; a damage has one line
    return error.why if file.path.exists() else f"it is missing; {error.why}"


def _check_skipped(path: Path, manifest: Manifest) -> Iterator[Damage]:
    if manifest.skipped is None:
        return
    check_plain(path / manifest.skipped.file)
    try:
        data = (path / manifest.skipped.file).read_bytes()
    except FileNotFoundError:
        yield Damage(file=manifest.skipped.file, why="it is missing; the pack's list of files has it")
        return
    except OSError as error:
        if error.errno in OF_THE_FILE:
            yield Damage(file=manifest.skipped.file, why=error.strerror or str(error))
            return
        raise cannot_open(path / manifest.skipped.file, error) from error
    if crc32c(data) != manifest.skipped.data_crc:
        yield Damage(file=manifest.skipped.file, why="its bytes do not match the checksum in pack.json")
