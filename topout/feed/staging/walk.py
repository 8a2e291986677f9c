"""Carries a plan out: fetches ahead of the readers, and lets an item go when the last reader has passed its last use.

The plan works with a part of the store, so that the rest is always there for what is read once and for what leaves but
is still to be read: that part decides how far ahead the walk can be. What would come too late is left to the readers,
who read it from the slow path themselves; when it is worth keeping, it is fetched once there is nothing more urgent.
"""

import errno
import heapq
from array import array
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from topout.feed.staging.course import Course
from topout.feed.staging.plan import Plan
from topout.schema.errors import TopoutError

_TURNS_AT_ONCE = 512
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Store(Protocol):
    """A place for items. All but `fill` are called from one thread."""

    sizes_bytes: NDArray[np.int64]
    capacity_bytes: int

    @property
    def item_of_sample(self) -> NDArray[np.int64] | None: ...

    @property
    def free_bytes(self) -> int: ...

    def present(self) -> NDArray[np.int64]: ...

    def reserve(self, item: int) -> Any: ...

    def fill(self, item: int, reserved: Any) -> bool: ...

    def cancel(self, item: int, reserved: Any) -> None: ...

    def drop(self, item: int) -> None: ...

    def drop_damaged(self, sample: int) -> int | None: ...

    def close(self) -> None: ...


def planned_bytes(store: Store, course: Course, window_share: float) -> int:
    """The part of the store that the plan may fill: all when everything fits, else all but a window to fetch into."""
    sizes, capacity_bytes = store.sizes_bytes, store.capacity_bytes
    if int(sizes.sum()) <= capacity_bytes:
        return capacity_bytes
    # the batch being read, the one that is next, and one that is fetched meanwhile
    batches_bytes = int(3 * course.turns_at_once * sizes.mean()) if store.item_of_sample is None else 0
    least_bytes = max(2 * int(sizes.max()), batches_bytes)
    return capacity_bytes - max(int(capacity_bytes * window_share), min(least_bytes, capacity_bytes // 2))


class Walk:
    """One walk along a course, from a time on."""

    def __init__(
        self,
        course: Course,
        store: Store,
        executor: Executor,
        *,
        start_time: int,
        window_share: float,
        max_in_flight: int,
        on_staged: Callable[[int], None] = lambda _num_bytes: None,
        on_evicted: Callable[[], None] = lambda: None,
        on_failure: Callable[[TopoutError | OSError | None], None] = lambda _error: None,
        on_full: Callable[[int], None] = lambda _capacity_bytes: None,
    ) -> None:
        self._course = course
        self._store = store
        self._executor = executor
        self._window_share = window_share
        self._max_in_flight = max_in_flight
        self._on_staged, self._on_evicted = on_staged, on_evicted
        self._on_failure, self._on_full = on_failure, on_full
        self._sizes = array("q", store.sizes_bytes.tobytes())
        self._last_use = array("q", [start_time - 1]) * len(self._sizes)
        self._present = bytearray(len(self._sizes))
        found = store.present()
        np.frombuffer(self._present, dtype=np.uint8)[found] = 1
        self.plan = Plan(
            course,
            start_time=start_time,
            sizes_bytes=store.sizes_bytes,
            capacity_bytes=planned_bytes(store, course, window_share),
            item_of_sample=store.item_of_sample,
            present=found,
        )
        self._leaving = [(start_time - 1, item) for item in self.plan.unwanted]
        self._late: deque[int] = deque()
        self._late_bytes = 0
        self._in_flight: dict[Future[bool], tuple[int, Any]] = {}
        self._fetching: set[int] = set()
        self.num_planned_hits = 0
        self.num_turns = 0

    def step(self, now: int) -> bool:
        """Does what can be done at once; whether there is more to do."""
        self._collect()
        for _ in range(_TURNS_AT_ONCE):
            if self.plan.next_time() >= now + self._course.lookahead or len(self._fetching) >= self._max_in_flight:
                break
            if not self._take_turn(now):
                break
        else:
            return True
        self._catch_up()
        return False

    def wait(self, timeout_s: float) -> bool:
        """Until something in flight is done; False when nothing is in flight."""
        if not self._in_flight:
            return False
        wait(self._in_flight, timeout=timeout_s, return_when=FIRST_COMPLETED)
        return True

    def drop_damaged(self, sample: int) -> None:
        item = self._store.drop_damaged(sample)
        if item is not None:
            self._present[item] = 0
            self._put_off(item)

    def finish(self) -> None:
        """Waits for what is in flight, so that the store can be closed or walked again."""
        while self._in_flight:
            self.wait(1.0)
            self._collect()

    def _take_turn(self, now: int) -> bool:
        """Whether the turn could be taken; not when there is no room yet."""
        time, item = self.plan.next_time(), self.plan.next_item()
        is_absent = not self._present[item] and item not in self._fetching
        is_too_late = time < now + self._course.margin
        has_room = True
        if is_absent and not is_too_late:
            # what is kept but came late has its room already, or the window would take it for ever
            has_room = self._make_room(self._sizes[item] + self._late_bytes, now)
            if not has_room and (self._leaving or self._fetching or self._late):
                return False
        turn = self.plan.take_turn()
        self.num_turns += 1
        self.num_planned_hits += turn.is_kept_before
        self._last_use[item] = time
        for other in turn.leaving:
            if self._present[other] or other in self._fetching or other == item:
                heapq.heappush(self._leaving, (self._last_use[other], other))
        if is_absent and self._sizes[item]:
            if not is_too_late and has_room:
                self._fetch(item)
            elif turn.is_kept_after:
                self._put_off(item)
        return True

    def _make_room(self, needed_bytes: int, now: int) -> bool:
        """Drops what every reader has passed for the last time, oldest first."""
        while self._store.free_bytes < needed_bytes and self._leaving and self._leaving[0][0] < now:
            time, item = self._leaving[0]
            is_wanted = self.plan.keeper.is_kept(item) or self._last_use[item] != time
            if item in self._fetching and not is_wanted:
                return False
            heapq.heappop(self._leaving)
            if not is_wanted and self._present[item]:
                self._present[item] = 0
                self._store.drop(item)
                self._on_evicted()
        return self._store.free_bytes >= needed_bytes

    def _catch_up(self) -> None:
        while self._late and len(self._fetching) < self._max_in_flight:
            item = self._late[0]
            if self.plan.keeper.is_kept(item) and not self._present[item] and item not in self._fetching:
                if self._store.free_bytes < self._sizes[item]:
                    return
                self._fetch(item)
            self._late.popleft()
            self._late_bytes -= self._sizes[item]

    def _put_off(self, item: int) -> None:
        self._late.append(item)
        self._late_bytes += self._sizes[item]

    def _fetch(self, item: int) -> None:
        reserved = self._store.reserve(item)
        self._fetching.add(item)
        self._in_flight[self._executor.submit(self._store.fill, item, reserved)] = (item, reserved)

    def _collect(self) -> None:
        for future in [future for future in self._in_flight if future.done()]:
            item, reserved = self._in_flight.pop(future)
            self._fetching.discard(item)
            error = future.exception()
            if error is None and future.result():
                self._present[item] = 1
                self._on_staged(self._sizes[item])
                continue
            self._store.cancel(item, reserved)
            if isinstance(error, OSError) and error.errno in _NO_SPACE:
                self._shrink()
            elif error is None or isinstance(error, TopoutError | OSError):
                self._on_failure(error)
            else:
                raise error

    def _shrink(self) -> None:
        """The disk is full: goes on with what is used now, less a little for those who share the disk."""
        used_bytes = self._store.capacity_bytes - self._store.free_bytes
        smaller = min(self._store.capacity_bytes, used_bytes) * 19 // 20
        self._store.capacity_bytes = smaller
        for item in self.plan.keeper.shrink(planned_bytes(self._store, self._course, self._window_share)):
            if self._present[item] or item in self._fetching:
                heapq.heappush(self._leaving, (self._last_use[item], item))
        self._on_full(smaller)
