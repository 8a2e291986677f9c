"""Samples staged one by one, in an arena. For orders that touch every shard all the time, when the pack does not fit.

Not for packs that fit whole: a shard is one long read of the slow path, its samples are many short ones.
"""

import errno
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topout.feed.staging.arena import Arena, ArenaLayout, ArenaView, create_arena, page_size_for
from topout.feed.staging.folder import StagingFolder, State, Word
from topout.feed.staging.site import Site
from topout.packs.checksum import crc32c
from topout.packs.layout import row_crc

_ATTEMPTS = 3
_SMALLEST_BUDGET_BYTES = 1 << 20


class SampleReader:
    """The arena as readers of any process see it, followed when another takes its place."""

    def __init__(self, folder: StagingFolder, state: State, num_samples: int) -> None:
        self._folder = folder
        self._state = state
        self._num_samples = num_samples
        self._generation = -1
        self._view: ArenaView | None = None

    def read(self, sample: int, length_bytes: int) -> bytes | None:
        """Unverified; None when it is not here."""
        if self._generation != self._state[Word.GENERATION]:
            self._reopen()
        return None if self._view is None else self._view.read(sample, length_bytes)

    def _reopen(self) -> None:
        self._generation = self._state[Word.GENERATION]
        layout = ArenaLayout.of_file(self._folder.arena)
        # the view before may be in use by another thread: it goes with its last user
        if layout is None or layout.num_samples != self._num_samples or layout.pack_key != self._folder.path.name:
            self._view = None
            return
        try:
            self._view = ArenaView(self._folder.arena, layout)
        except OSError:
            self._view = None


class SampleStore:
    """The arena as the holder of the lock sees it."""

    item_of_sample = None

    def __init__(self, site: Site, budget_bytes: int) -> None:
        folder, state, manifest, index = site.folder, site.state, site.manifest, site.index
        self._state = state
        self._origin = site.origin
        self._manifest = manifest
        self._index = index
        lengths = index["length"]
        self._arena = _open_arena(folder, lengths, budget_bytes, state)
        self.budget_bytes = self._arena.layout.num_bytes
        self.capacity_bytes = self._arena.layout.num_pages * self._arena.layout.page_bytes
        page_bytes = self._arena.layout.page_bytes
        self.sizes_bytes: NDArray[np.int64] = -(-lengths.astype(np.int64) // page_bytes) * page_bytes

    @property
    def free_bytes(self) -> int:
        return self._arena.free_bytes

    def present(self) -> NDArray[np.int64]:
        return self._arena.samples()

    def reserve(self, item: int) -> list[int]:
        return self._arena.reserve(item)

    def cancel(self, _item: int, pages: list[int]) -> None:
        self._arena.release(pages)

    def fill(self, item: int, pages: list[int]) -> bool:
        """Fetches a sample into its pages; False when the slow path does not have it whole."""
        row = self._index[item]
        data, crc = row.tobytes(), int(row["crc"])
        file = self._manifest.shards[int(row["shard"])].file
        for attempt in range(_ATTEMPTS):
            if attempt:
                self._state[Word.NUM_RETRIES] += 1
            record = self._origin.read(file, int(row["offset"]), int(row["length"]))
            if row_crc(crc32c(record), data, item) == crc:
                self._arena.put(item, pages, record)
                return True
        return False

    def drop(self, item: int) -> None:
        self._arena.drop(item)

    def drop_damaged(self, sample: int) -> int | None:
        """Throws a bad copy away; the item that is gone."""
        # a reader that was overtaken may call a good copy bad: look before it goes
        row = self._index[sample]
        found = self._arena.read(sample, int(row["length"]))
        if found is None or row_crc(crc32c(found), row.tobytes(), sample) == int(row["crc"]):
            return None
        self._arena.drop(sample)
        return sample

    def close(self) -> None:
        self._arena.close()


def _open_arena(folder: StagingFolder, lengths: NDArray[Any], budget_bytes: int, state: State) -> Arena:
    """The arena that is there when it has the right measures, else a new one, smaller where the disk is."""
    page_bytes = page_size_for(lengths)

    def layout_for(wanted_bytes: int) -> ArenaLayout:
        return ArenaLayout.within(
            wanted_bytes, pack_key=folder.path.name, num_samples=len(lengths), page_bytes=page_bytes
        )

    there, wanted = ArenaLayout.of_file(folder.arena), layout_for(budget_bytes)
    if there is None or there.header() != wanted.header():
        folder.arena.unlink(missing_ok=True)
        folder.remove_abandoned(wanted.num_bytes)
        there = _create(folder, layout_for, budget_bytes)
        state[Word.GENERATION] += 1
    return Arena(folder.arena, there, lengths)


def _create(folder: StagingFolder, layout_for: Any, budget_bytes: int) -> ArenaLayout:
    while True:
        layout: ArenaLayout = layout_for(budget_bytes)
        try:
            create_arena(folder.arena, layout)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or budget_bytes < _SMALLEST_BUDGET_BYTES:
                raise
            budget_bytes = min(budget_bytes * 3 // 4, folder.free_bytes() * 9 // 10)
        else:
            return layout
