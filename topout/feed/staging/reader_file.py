"""What each reader tells the process that stages: how far it is, and what it found near or had to fetch.

The file's flock says that the reader lives. Counts of forked workers stand in slots of their own; two workers may share
one and then lose a count now and then.
"""

import itertools
import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from topout.feed.staging.folder import HeldLock, StagingFolder, is_held, mapped, try_lock, wait_for_lock

_SLOTS = 64
_SLOT_WORDS = 8
_FILE_BYTES = _SLOTS * _SLOT_WORDS * 8
_TIME, _DAMAGED = 0, 1
_serial = itertools.count()
_HITS, _MISSES, _HIT_BYTES, _MISS_BYTES = range(4)


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Reads of samples: near (`hits`) and from the slow path (`misses`)."""

    hits: int = 0
    misses: int = 0
    hit_bytes: int = 0
    miss_bytes: int = 0

    @property
    def hit_share(self) -> float | None:
        return self.hits / (self.hits + self.misses) if self.hits + self.misses else None


class ReaderFile:
    """This process's own; forked workers go on writing into it."""

    def __init__(self, folder: StagingFolder, course_key: str, reader: str) -> None:
        path = folder.readers / f"{course_key}.{reader}"
        lock = try_lock(path)
        if lock is None:
            # the same rank of the same job started twice, or one that is still dying: neither may hold up the other
            path = folder.readers / f"{course_key}.process-{os.getpid()}-{next(_serial)}"
            lock = wait_for_lock(path)
        self._lock: HeldLock | None = lock
        self._map = mapped(path, _FILE_BYTES)
        self._words = memoryview(self._map).cast("Q")
        for word in range(len(self._words)):
            self._words[word] = 0
        self._thread_lock = threading.Lock()
        self._pid = -1
        self._slot = 0

    def advance(self, time: int) -> None:
        """Everything before `time` has been read."""
        self._words[_TIME] = time

    def count(self, *, is_hit: bool, num_bytes: int) -> None:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._thread_lock = threading.Lock()
            self._slot = (self._pid % (_SLOTS - 1) + 1) * _SLOT_WORDS
        with self._thread_lock:
            self._words[self._slot + (_HITS if is_hit else _MISSES)] += 1
            self._words[self._slot + (_HIT_BYTES if is_hit else _MISS_BYTES)] += num_bytes

    def report_damage(self, sample: int) -> None:
        """The near copy of this sample is not good; the holder throws it away."""
        self._words[_DAMAGED] = sample + 1

    def counts(self) -> Counts:
        hits, misses, hit_bytes, miss_bytes = (sum(self._words[_SLOT_WORDS + kind :: _SLOT_WORDS]) for kind in range(4))
        return Counts(hits=hits, misses=misses, hit_bytes=hit_bytes, miss_bytes=miss_bytes)

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None


class Readers:
    """All readers of one course, as the holder sees them; `look` anew from time to time."""

    def __init__(self, folder: StagingFolder, course_key: str) -> None:
        self._folder = folder.readers
        self._course_key = course_key
        self._living: dict[Path, memoryview] = {}

    def look(self) -> None:
        """Who is alive."""
        found = {}
        for path in self._folder.glob(f"{self._course_key}.*"):
            # a reader that is gone leaves its file; the next of that name takes it over
            if is_held(path):
                with suppress(OSError):
                    found[path] = self._living.get(path) or memoryview(mapped(path, _FILE_BYTES)).cast("Q")
            elif ".process-" in path.name:
                path.unlink(missing_ok=True)
        self._living = found

    def slowest_time(self) -> int | None:
        """The time before which every living reader has read everything; None when nobody is there."""
        return min((words[_TIME] for words in self._living.values()), default=None)

    def damaged(self) -> set[int]:
        """Samples whose near copies readers found bad since the last call."""
        found = set()
        for words in self._living.values():
            if words[_DAMAGED]:
                found.add(words[_DAMAGED] - 1)
                words[_DAMAGED] = 0
        return found


def reader_name(rank: int | None) -> str:
    return f"rank-{rank}" if rank is not None else f"process-{os.getpid()}-{next(_serial)}"
