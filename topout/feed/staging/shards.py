"""Shards staged whole, each a file like in the pack.

A copy gets its name after its checksum was found right and its bytes are on the disk, so a shard that has its name is
whole. Not for a budget smaller than the pack with an order that jumps between all shards: see `samples`.
"""

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from topout.feed.staging.folder import StagingFolder, State, Word
from topout.feed.staging.site import Site
from topout.packs.checksum import crc32c
from topout.packs.damage import DamagedPack
from topout.packs.layout import TRAILER_BYTES, MisshapenError, decode_trailer
from topout.packs.manifest import Manifest, ShardEntry
from topout.packs.shard import ShardFile

_ATTEMPTS = 3
_CHUNK_BYTES = 8 << 20


class ShardReader:
    """The staged shards as readers of any process see them; files are given up when the holder evicts a shard."""

    def __init__(self, folder: StagingFolder, state: State, manifest: Manifest) -> None:
        self._folder = folder
        self._state = state
        self._manifest = manifest
        self._pack_id = bytes.fromhex(manifest.pack_id)
        self._open: dict[int, tuple[int, ShardFile]] = {}
        self._num_evicted = 0

    def file(self, number: int) -> ShardFile | None:
        """Opened; None when it is not here."""
        if self._num_evicted != self._state[Word.NUM_EVICTED]:
            self._close_evicted()
        copy = self._state.copies[number]
        opened = self._open.get(number)
        if opened is not None and opened[0] == copy:
            return opened[1]
        if copy == 0:
            return None
        entry = self._manifest.shards[number]
        file = ShardFile(self._folder.path, self._folder.path / entry.file, entry, self._pack_id, number)
        try:
            file.open()
        except DamagedPack:
            # thrown away meanwhile
            return None
        self._open[number] = (copy, file)
        return file

    def close(self) -> None:
        self._open.clear()

    def _close_evicted(self) -> None:
        """A deleted file takes room while it is open; those handed out stay so, and it goes with the last."""
        self._num_evicted = self._state[Word.NUM_EVICTED]
        for number, (copy, _) in list(self._open.items()):
            if self._state.copies[number] != copy:
                self._open.pop(number, None)


class ShardStore:
    """The staged shards as the holder of the lock sees them."""

    def __init__(self, site: Site, budget_bytes: int) -> None:
        folder, state, manifest, index = site.folder, site.state, site.manifest, site.index
        self._folder = folder
        self._state = state
        self._origin = site.origin
        self._manifest = manifest
        self.budget_bytes = budget_bytes
        self.capacity_bytes = budget_bytes
        self.sizes_bytes = np.array([entry.size_bytes for entry in manifest.shards], dtype=np.int64)
        self.item_of_sample: NDArray[np.int64] = index["shard"].astype(np.int64)
        # copies are numbered on from those of earlier holders, so that readers never take a new one for an old one
        self._serial = max([*state.copies, 0])
        self._present: set[int] = set()
        for number, entry in enumerate(manifest.shards):
            if _is_whole(self._path(entry), entry):
                self._present.add(number)
                self._serial += self._state.copies[number] == 0
                self._state.copies[number] = self._state.copies[number] or self._serial
            else:
                self._path(entry).unlink(missing_ok=True)
                self._state.copies[number] = 0
        self._reserved_bytes = int(self.sizes_bytes[sorted(self._present)].sum())
        folder.remove_abandoned(min(budget_bytes, int(self.sizes_bytes.sum())) - self._reserved_bytes)

    @property
    def free_bytes(self) -> int:
        return self.capacity_bytes - self._reserved_bytes

    def present(self) -> NDArray[np.int64]:
        return np.array(sorted(self._present), dtype=np.int64)

    def reserve(self, item: int) -> None:
        self._reserved_bytes += int(self.sizes_bytes[item])

    def cancel(self, item: int, _reserved: None) -> None:
        self._reserved_bytes -= int(self.sizes_bytes[item])

    def fill(self, item: int, _reserved: None) -> bool:
        """Copies a shard; False when the slow path does not have it whole. Raises OSError when the disk is full."""
        entry = self._manifest.shards[item]
        unfinished = self._path(entry).with_suffix(".tmp")
        for attempt in range(_ATTEMPTS):
            if attempt:
                self._state[Word.NUM_RETRIES] += 1
            try:
                if self._copy(entry, unfinished):
                    unfinished.rename(self._path(entry))
                    self._present.add(item)
                    self._serial += 1
                    self._state.copies[item] = self._serial
                    return True
            finally:
                unfinished.unlink(missing_ok=True)
        return False

    def drop(self, item: int) -> None:
        self._state.copies[item] = 0
        self._present.discard(item)
        self._path(self._manifest.shards[item]).unlink(missing_ok=True)
        self._reserved_bytes -= int(self.sizes_bytes[item])

    def drop_damaged(self, sample: int) -> int | None:
        """Throws a bad copy away; the item that is gone."""
        item = int(self.item_of_sample[sample])
        if item not in self._present:
            return None
        self.drop(item)
        return item

    def close(self) -> None:
        """Nothing is held open."""

    def _path(self, entry: ShardEntry) -> Path:
        return self._folder.path / entry.file

    def _copy(self, entry: ShardEntry, unfinished: Path) -> bool:
        """Whether the copy has the checksum that the pack's list says."""
        crc, data_bytes = 0, entry.size_bytes - TRAILER_BYTES
        with unfinished.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, entry.size_bytes)
            for start in range(0, data_bytes, _CHUNK_BYTES):
                chunk = self._origin.read(entry.file, start, min(_CHUNK_BYTES, data_bytes - start))
                crc = crc32c(chunk, crc)
                file.write(chunk)
            trailer = self._origin.read(entry.file, data_bytes, TRAILER_BYTES)
            file.write(trailer)
            file.flush()
            os.fsync(file.fileno())
        try:
            return crc == entry.data_crc == decode_trailer(trailer).data_crc
        except MisshapenError:
            return False


def _is_whole(path: Path, entry: ShardEntry) -> bool:
    """By size: a copy has its name only once it was found right."""
    try:
        return path.stat().st_size == entry.size_bytes
    except OSError:
        return False
