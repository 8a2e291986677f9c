"""`topout pack`: from a source's listing to a pack, with threads, and on from where a killed one was.

A shard whose `.rows` file is there is done and not read again. Memory is bounded: each thread holds one sample and a
chunk of a few MiB; beside that, names and index rows are kept (some 200 bytes a sample).
"""

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from topout.packs.fields import Field
from topout.packs.manifest import MANIFEST_NAME, Manifest, SourceEntry, read_manifest
from topout.packs.packing.begun import BegunPack, remove_left_behind
from topout.packs.packing.finish import Contents, finish
from topout.packs.packing.options import PackOptions
from topout.packs.packing.plan import identity_of, make_plan, planned_fields
from topout.packs.packing.preprocess import Preprocessor
from topout.packs.packing.shard_maker import ShardMaker, StoppedError, bad_entry
from topout.packs.packing.shard_writer import ShardRows, read_rows, write_rows
from topout.packs.packing.storage_errors import cannot_write
from topout.packs.packing.striping import arrange
from topout.packs.packing.writer import taken
from topout.packs.sources import BadEntry, Listing
from topout.packs.targets import NoProgress, Progress
from topout.schema.errors import ExitCode, TopoutError

_MOST_WORKERS = 16


@dataclass(frozen=True, kw_only=True)
class PackReport:
    """How packing went."""

    manifest: Manifest
    was_there: bool
    """The pack was finished before, from the same source with the same options; nothing was done."""
    num_shards_kept: int
    """Shards that an earlier, killed attempt had finished."""
    bad: tuple[BadEntry, ...]


def pack(
    listing: Listing,
    source: tuple[str, Path],
    destination: Path,
    options: PackOptions,
    *,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda _line: None,
) -> PackReport:
    """Packs what `listing` lists; `source` is the plug-in's name and the path it was opened with."""
    if not len(listing.names):
        raise TopoutError(
            f"There is nothing to pack in {source[1]}.",
            why="no file was found",
            do="check the path, or name the kind: --from",
        )
    if destination.resolve().is_relative_to(source[1].resolve()):
        raise TopoutError(
            f"{destination} lies in {source[1]}.",
            why="the pack would be listed as a part of its own source",
            do="choose a folder elsewhere",
        )
    fields = planned_fields(listing, options)
    there = _finished(listing, fields, destination, options)
    if there is not None:
        return PackReport(manifest=there, was_there=True, num_shards_kept=len(there.shards), bad=())
    try:
        begun = _prepare(destination, options, say)
    except OSError as error:
        raise cannot_write(destination, error) from error
    try:
        return _Packer(
            listing, begun, source=source, fields=fields, options=options, progress=progress or NoProgress()
        ).run()
    except OSError as error:
        raise cannot_write(destination, error) from error
    finally:
        begun.close()


def _finished(
    listing: Listing, fields: tuple[Field, ...], destination: Path, options: PackOptions
) -> Manifest | None:  # fmt: skip
    if options.is_replacing or not (destination / MANIFEST_NAME).exists():
        return None
    manifest = read_manifest(destination)
    is_same = (
        manifest.source is not None
        and manifest.pack_id == identity_of(listing, fields, options)[:16].hex()
        and manifest.source.fingerprint == listing.fingerprint
    )
    if not is_same:
        raise taken(destination, "--force")
    remove_left_behind(destination)
    return manifest


def _prepare(destination: Path, options: PackOptions, say: Callable[[str], None]) -> BegunPack:
    destination.mkdir(parents=True, exist_ok=True)
    if not any(destination.iterdir()):
        # files take their striping from the folder they are made in
        told = arrange(destination, options.shard_bytes)
        if told is not None:
            say(told)
    return BegunPack(destination)


class _Packer:
    """One run of packing."""

    def __init__(
        self,
        listing: Listing,
        begun: BegunPack,
        *,
        source: tuple[str, Path],
        fields: tuple[Field, ...],
        options: PackOptions,
        progress: Progress,
    ) -> None:
        self._listing = listing
        self._source = source
        self._begun = begun
        self._options = options
        self._progress = progress
        self._plan = make_plan(begun, listing, fields, options)
        self._maker = ShardMaker(
            listing,
            options,
            fields=fields,
            dictionaries=self._plan.dictionaries,
            pack_id=self._plan.pack_id,
            progress=progress,
        )

    def run(self) -> PackReport:
        if self._begun.manifest_path.exists():
            manifest = read_manifest(self._begun.folder)
            self._begun.publish(manifest)
            return PackReport(manifest=manifest, was_there=False, num_shards_kept=len(manifest.shards), bad=())
        ranges = self._plan.ranges
        kept = {number: shard for number in range(len(ranges)) if (shard := self._kept(number)) is not None}
        self._check_room(kept)
        shards = self._write_all(kept)
        manifest = finish(self._begun, self._contents(), shards, ranges)
        bad = tuple(entry for shard in shards for entry in shard.bad)
        return PackReport(manifest=manifest, was_there=False, num_shards_kept=len(kept), bad=bad)

    def _kept(self, number: int) -> ShardRows | None:
        shard = read_rows(self._begun.rows_path(number), self._plan.fields)
        if shard is not None:
            start, stop = self._plan.ranges[number]
            self._progress.add(stop - start, int(self._listing.sizes[start:stop].sum()))
            if shard.bad and self._options.on_error == "stop":
                raise bad_entry(shard.bad[0], self._listing)
        return shard

    def _write_all(self, kept: dict[int, ShardRows]) -> list[ShardRows]:
        num_workers = self._options.num_workers or min(_MOST_WORKERS, len(os.sched_getaffinity(0)) + 1)
        missing = [number for number in range(len(self._plan.ranges)) if number not in kept]
        with ThreadPoolExecutor(num_workers, thread_name_prefix="topout-pack") as threads:
            futures = {number: threads.submit(self._write_shard, number) for number in missing}
            try:
                errors = [error for future in futures.values() if (error := future.exception()) is not None]
            except BaseException:
                self._maker.stop()
                threads.shutdown(cancel_futures=True)
                raise
        # threads that were stopped only say so; the reason is another's
        for error in sorted(errors, key=lambda error: isinstance(error, StoppedError)):
            raise error
        written = {number: future.result() for number, future in futures.items()}
        return [shard for _, shard in sorted({**kept, **written}.items())]

    def _write_shard(self, number: int) -> ShardRows:
        done = self._maker.write(self._begun.data_path(number), number, self._plan.ranges[number])
        try:
            write_rows(self._begun.rows_path(number), done)
        except BaseException:
            self._maker.stop()
            raise
        return done

    def _check_room(self, kept: dict[int, ShardRows]) -> None:
        """Before hours are spent; only where samples stay as they are, since else nobody knows."""
        if not self._options.keeps_sizes or any(field.codec != "raw" for field in self._plan.fields):
            return
        spans = [span for number, span in enumerate(self._plan.ranges) if number not in kept]
        needed = sum(int(self._listing.sizes[start:stop].sum()) for start, stop in spans)
        free = shutil.disk_usage(self._begun.folder).free
        if needed > free:
            raise TopoutError(
                f"{self._begun.destination} has no room for the pack.",
                why=f"{needed / 1e9:.2f} GB are left to write, {free / 1e9:.2f} GB are free",
                do="free some space or choose another disk; what is packed stays packed",
                exit_code=ExitCode.ENVIRONMENT,
            )

    def _contents(self) -> Contents:
        plugin, path = self._source
        source = SourceEntry(
            plugin=plugin,
            path=os.fspath(path.absolute()),
            fingerprint=self._plan.fingerprint,
            num_entries=len(self._listing.names),
            num_files=self._listing.num_files,
            num_folders=self._listing.num_folders,
            total_bytes=int(self._listing.sizes.sum()),
        )
        return Contents(
            pack_id=self._plan.pack_id,
            fields=self._plan.fields,
            classes=self._listing.classes,
            source=source,
            options=Preprocessor(self._listing.fields, self._options).changes,
            dictionaries=self._plan.dictionaries,
        )
