"""The thread that stages: in every rank of a node, but only one at a time works, the one that has the folder's lock.

When that process ends, however it may, another rank's thread gets the lock and goes on with what it finds. Nothing here
raises into training: what goes wrong is said once, and readers read from the slow path.
"""

import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from topout.epoch.whole_number import whole
from topout.feed.staging.course import Course
from topout.feed.staging.folder import Word, try_lock
from topout.feed.staging.reader_file import Readers
from topout.feed.staging.samples import SampleStore
from topout.feed.staging.shards import ShardStore
from topout.feed.staging.site import Site
from topout.feed.staging.walk import Store, Walk
from topout.schema.errors import TopoutError

UNITS = ("auto", "shards", "samples")
_log = logging.getLogger("topout.feed")
_POLL_S = 0.25
_IDLE_S = 0.01
_PAUSE_AFTER_FAILURE_S = 5.0


@dataclass(frozen=True, kw_only=True)
class StagingOptions:
    """How much is staged, and in what pieces; where is said when the pack is opened."""

    budget_bytes: int | None = None
    """None: half of what is free there."""
    unit: str = "auto"
    """`auto`: `shards` when the pack fits the budget, else `samples`. Ask for `shards` where the order is by blocks."""
    window_share: float = 0.125
    """Of the budget, kept for what is fetched ahead; it shrinks what stays from epoch to epoch."""
    num_streams: int = 8
    """Reads of the slow path at one time."""

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise TopoutError(
                f"There is no staging by {self.unit!r}.", why=f"there is {', '.join(UNITS)}", do="unit='auto'"
            )
        if self.budget_bytes is not None:
            whole("budget_bytes", self.budget_bytes)
        whole("num_streams", self.num_streams)
        if not isinstance(self.window_share, float) or not 0 < self.window_share <= 0.5:
            raise TopoutError(
                f"A window of {self.window_share!r} of the budget is not possible.",
                why="it is a share, above 0 and up to 0.5",
                do="leave it out, or give 0.125",
            )


class Stager(threading.Thread):
    """Started by each reader; `stop` ends it and frees the lock for another."""

    def __init__(self, site: Site, course: Course, start_time: int, options: StagingOptions) -> None:
        super().__init__(name="topout-stager", daemon=True)
        self._site = site
        self._course = course
        self._start_time = start_time
        self._options = options
        self._readers = Readers(site.folder, course.key)
        self._is_stopping = threading.Event()
        self._said: set[str] = set()
        self.is_holder = False
        self.num_looks = 0
        """At the readers, while it was the holder."""

    def stop(self) -> None:
        self._is_stopping.set()
        self.join()

    def run(self) -> None:
        while not self._is_stopping.is_set():
            try:
                self._take_part()
                pause_s = _POLL_S
            except (TopoutError, OSError) as error:
                self._say("failed", f"Staging stands still: {error}")
                pause_s = _PAUSE_AFTER_FAILURE_S
            except RuntimeError as error:
                # a script that ends without closing its pack takes the executor away
                if threading.main_thread().is_alive():
                    self._say("broken", f"Staging has ended: {error!r}; please report this. Reads go on without it.")
                return
            self._is_stopping.wait(pause_s)

    def _take_part(self) -> None:
        lock = try_lock(self._site.folder.lock)
        if lock is None:
            return
        try:
            self.is_holder = True
            self._site.state[Word.HOLDER_PID] = os.getpid()
            self._site.folder.remove_unfinished()
            store = self._open_store()
            try:
                with ThreadPoolExecutor(self._options.num_streams, thread_name_prefix="topout-stage") as executor:
                    self._walk(store, executor)
            finally:
                store.close()
        finally:
            self.is_holder = False
            lock.release()

    def _open_store(self) -> Store:
        site = self._site
        total_bytes = sum(entry.size_bytes for entry in site.manifest.shards)
        present_bytes = _size_on_disk(site.folder.path)
        budget_bytes = self._options.budget_bytes
        if budget_bytes is None:
            budget_bytes = (site.folder.free_bytes() + present_bytes) // 2
        unit = self._options.unit
        if unit == "auto":
            unit = "shards" if total_bytes <= budget_bytes else "samples"
        store: ShardStore | SampleStore
        if unit == "shards":
            site.folder.arena.unlink(missing_ok=True)
            store = ShardStore(site, budget_bytes)
        else:
            for number, entry in enumerate(site.manifest.shards):
                site.state.copies[number] = 0
                (site.folder.path / entry.file).unlink(missing_ok=True)
            store = SampleStore(site, budget_bytes)
            if store.budget_bytes < budget_bytes * 9 // 10:
                self._say_smaller(store.budget_bytes)
        site.state[Word.BUDGET_BYTES] = store.budget_bytes
        return store

    def _walk(self, store: Store, executor: ThreadPoolExecutor) -> None:
        now, looked_at = self._start_time, 0.0
        walk = self._new_walk(store, executor, now)
        try:
            while not self._is_stopping.is_set():
                if monotonic() - looked_at > _POLL_S:
                    looked_at = monotonic()
                    self._readers.look()
                    self.num_looks += 1
                    for sample in self._readers.damaged():
                        walk.drop_damaged(sample)
                slowest = self._readers.slowest_time()
                if slowest is not None and slowest < now:
                    # the readers went back: another epoch was asked for
                    walk.finish()
                    walk = self._new_walk(store, executor, slowest)
                now = now if slowest is None else slowest
                if not walk.step(now) and not walk.wait(_IDLE_S):
                    self._is_stopping.wait(_IDLE_S)
        finally:
            walk.finish()

    def _new_walk(self, store: Store, executor: ThreadPoolExecutor, start_time: int) -> Walk:
        state = self._site.state

        def add(word: Word, amount: int = 1) -> None:
            state[word] += amount

        def staged(num_bytes: int) -> None:
            add(Word.STAGED_BYTES, num_bytes)
            add(Word.NUM_STAGED)

        def failed(error: TopoutError | OSError | None) -> None:
            add(Word.NUM_GIVEN_UP)
            self._say("given up", f"Some data cannot be staged and is read from {self._site.origin.address}: "
                      f"{error or 'its checksum is wrong there'}")  # fmt: skip

        return Walk(
            self._course,
            store,
            executor,
            start_time=start_time,
            window_share=self._options.window_share,
            max_in_flight=2 * self._options.num_streams,
            on_staged=staged,
            on_evicted=lambda: add(Word.NUM_EVICTED),
            on_failure=failed,
            on_full=self._say_smaller,
        )

    def _say_smaller(self, budget_bytes: int) -> None:
        self._site.state[Word.BUDGET_BYTES] = budget_bytes
        folder = self._site.folder.path
        self._say("full", f"{folder}: the disk is full; staging goes on with {budget_bytes / 1e9:.3f} GB.")

    def _say(self, kind: str, text: str) -> None:
        """Once for each kind of thing."""
        if kind not in self._said:
            self._said.add(kind)
            _log.warning("%s", text)


def _size_on_disk(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.glob("*.bin"))
