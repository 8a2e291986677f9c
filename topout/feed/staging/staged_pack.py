"""A pack read from near where it is staged and from the slow path where it is not: the same reader either way.

A reader never waits for the staging: what is not near yet is read straight from the slow path, as without staging.
Every record is verified wherever it came from; a near copy that is not good is passed over and thrown away. Not for
packs on a disk of the node: `open_pack` reads those with nothing in between.
"""

import os
import weakref
from pathlib import Path
from typing import cast

import numpy as np

from topout.feed.staging.course import Course, ListingCourse
from topout.feed.staging.folder import HeldLock, StagingFolder, State, Word, default_root
from topout.feed.staging.metadata import bring_metadata
from topout.feed.staging.origin import Origin, origin_of
from topout.feed.staging.reader_file import Counts, ReaderFile, reader_name
from topout.feed.staging.samples import SampleReader
from topout.feed.staging.shards import ShardReader
from topout.feed.staging.site import Site
from topout.feed.staging.stager import Stager, StagingOptions
from topout.packs.checksum import crc32c
from topout.packs.layout import HEADER_BYTES, MisshapenError, row_crc
from topout.packs.manifest import Manifest
from topout.packs.pack import Pack, Repair
from topout.packs.shard import ShardFile

_ATTEMPTS = 3


class StagedPack(Pack):
    """Made by `open_staged`. Reads from the slow path alone until `follow` is called."""

    keeps_shards = False

    def __init__(
        self,
        origin: Origin,
        folder: StagingFolder,
        manifest: Manifest,
        use: HeldLock,
        *,
        on_damage: str,
        repair: Repair | None,
    ) -> None:
        # an address is no path, but all that is done with it is to print it
        path = cast(Path, origin.address)
        super().__init__(path, manifest, on_damage=on_damage, locate=folder.path.joinpath, repair=repair)
        self.origin = origin
        self.staging_folder = folder
        self._use = use
        weakref.finalize(self, use.release)
        self._state = State(folder.state, len(manifest.shards))
        self._near_shards = ShardReader(folder, self._state, manifest)
        self._near_samples = SampleReader(folder, self._state, len(self))
        self._reader: ReaderFile | None = None
        self._stager: Stager | None = None

    def follow(
        self, course: Course | None = None, options: StagingOptions | None = None, *, rank: int | None = None
    ) -> None:
        """Stages ahead of this course, together with the other ranks of the node; without one, in the pack's order."""
        self.leave()
        if not len(self):
            return
        course = course or ListingCourse(num_samples=len(self))
        start_time = getattr(course, "start_time", 0)
        self._reader = ReaderFile(self.staging_folder, course.key, reader_name(rank))
        self._reader.advance(start_time)
        site = Site(
            folder=self.staging_folder,
            state=self._state,
            origin=self.origin,
            manifest=self.manifest,
            index=self.index,
        )
        self._stager = Stager(site, course, start_time, options or StagingOptions())
        self._stager.start()

    def advance(self, time: int) -> None:
        """This rank has read everything before `time` (see `course`); what it will not need again may go."""
        if self._reader is not None:
            self._reader.advance(time)

    def leave(self) -> None:
        """Stops staging in this process; another rank's goes on."""
        if self._stager is not None:
            self._stager.stop()
            self._stager = None
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def counts(self) -> Counts:
        """Of this process and the workers it forked, since `follow`."""
        return Counts() if self._reader is None else self._reader.counts()

    def staging(self) -> dict[str, int]:
        """What was staged on this node so far, by whichever rank."""
        return {word.name.lower(): self._state[word] for word in Word}

    @property
    def is_near(self) -> bool:
        """Every shard is staged: `staging_folder.path` is then a pack that `open_pack` reads."""
        return all(self._state.copies)

    def near_shard(self, number: int) -> ShardFile | None:
        """Another one, or None, when it was thrown away: whoever keeps the first one keeps the room that it takes."""
        return self._near_shards.file(number)

    def close(self) -> None:
        self.leave()
        self._near_shards.close()
        self._use.release()
        super().close()

    def verified(self, number: int, row: np.void) -> memoryview:
        """The record that a row points at, from near or from afar; raises DamagedSample where it is bad there too."""
        shard, length, offset = self.shard_of(number), int(row["length"]), int(row["offset"])
        if int(row["shard"]) != shard or not HEADER_BYTES <= offset <= offset + length <= self.shards[shard].data_end:
            raise self.damaged(number, "its index row points to where no record of it can be")
        data, crc = row.tobytes(), int(row["crc"])
        near = self._near(number, shard, offset, length)
        if near is not None:
            if row_crc(crc32c(near), data, number) == crc:
                self._count(True, length)
                return near
            # overwritten while it was read, or bad: the holder looks
            self._report(number)
        self._count(False, length)
        # bytes may be bad on the way and good where they lie
        for _ in range(_ATTEMPTS):
            record = memoryview(self.origin.read(self.manifest.shards[shard].file, offset, length))
            if row_crc(crc32c(record), data, number) == crc:
                return record
        raise self.damaged(number, "its bytes do not match their checksum")

    def _near(self, number: int, shard: int, offset: int, length: int) -> memoryview | None:
        file = self._near_shards.file(shard)
        if file is not None:
            try:
                return memoryview(file.read(offset, length))
            except MisshapenError:
                # a copy that cannot be read is a bad one: no bytes match no checksum
                return memoryview(b"")
        found = self._near_samples.read(number, length)
        return None if found is None else memoryview(found)

    def _report(self, number: int) -> None:
        if self._reader is not None:
            self._reader.report_damage(number)

    def _count(self, is_hit: bool, num_bytes: int) -> None:
        if self._reader is not None:
            self._reader.count(is_hit=is_hit, num_bytes=num_bytes)


def open_staged(
    path: str | os.PathLike[str],
    on_damage: str = "stop",
    *,
    root: Path | None = None,
    repair: Repair | None = None,
) -> StagedPack:
    """Opens a pack at a folder or an address; its index is brought near now, its shards when `follow` is called."""
    origin = origin_of(path)
    folder, manifest, use = bring_metadata(origin, root or default_root())
    try:
        return StagedPack(origin, folder, manifest, use, on_damage=on_damage, repair=repair)
    except BaseException:
        use.release()
        raise
