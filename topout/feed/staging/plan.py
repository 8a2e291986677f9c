"""Which items to keep near, given that the order of their use is known: Belady's rule, walked ahead of the readers.

An item (a sample, or a whole shard) is kept when it is used again sooner than what would have to go for it; else it is
fetched, used and let go. Nothing fetches less with items of one size (Belady 1966; reading past the store is allowed
here, which only helps). Of unequal sizes the best choice is NP-hard: the farthest next use then goes first, which is
near it. Nothing here reads, writes or waits. Not for an order that nobody knows; see `ListingCourse` for that.
"""

import heapq
from array import array
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topout.feed.staging.course import Course

NEVER = -1
"""In place of a turn: the item is not used again as far as can be seen."""
_MAX_TURNS = 1 << 23
_FAR = 1 << 40


def next_uses(items: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each turn, the turn at which the same item is used again, or NEVER."""
    order = np.argsort(items, kind="stable")
    following = np.full(len(items), NEVER, dtype=np.int64)
    again = items[order[1:]] == items[order[:-1]]
    following[order[:-1][again]] = order[1:][again]
    return following


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One use of an item, as planned; nobody needs those `leaving` after their last use, which is now or before."""

    time: int
    item: int
    is_kept_before: bool
    leaving: tuple[int, ...]

    @property
    def is_kept_after(self) -> bool:
        return self.item not in self.leaving


class Keeper:
    """The kept items and their next uses; what has the farthest next use goes first."""

    def __init__(self, sizes_bytes: NDArray[np.int64], capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.kept_bytes = 0
        # arrays of the standard library: one element is read and written in a third of numpy's time
        self._sizes = array("q", sizes_bytes.astype(np.int64).tobytes())
        self._next = array("q", [NEVER]) * len(sizes_bytes)
        self._heap: list[int] = []

    def is_kept(self, item: int) -> bool:
        return self._next[item] != NEVER

    def kept(self) -> NDArray[np.int64]:
        return np.flatnonzero(np.frombuffer(self._next, dtype=np.int64) != NEVER)

    def use(self, item: int, next_turn: int) -> tuple[int, ...]:
        """The items that need not stay after this use, `item` itself among them when it is not worth its room."""
        was_kept = self._next[item] != NEVER
        if was_kept:
            self._let_go(item)
        if next_turn == NEVER or self._sizes[item] > self.capacity_bytes:
            return (item,)
        victims = self._victims(item, next_turn)
        if victims is None:
            return (item,)
        for victim in victims:
            self._let_go(victim)
        self._keep(item, next_turn)
        return tuple(victims)

    def renew(self, next_turns: NDArray[np.int64]) -> tuple[int, ...]:
        """Takes the next use of every item from a new horizon; what is not in sight any more is let go."""
        kept = self.kept()
        return self.adopt(kept, next_turns)

    def adopt(self, items: NDArray[np.int64], next_turns: NDArray[np.int64]) -> tuple[int, ...]:
        """Starts with `items` kept, soonest next use first; gives back those that are not worth it or do not fit."""
        for item in self.kept().tolist():
            self._let_go(item)
        self._heap.clear()
        is_in_sight = next_turns[items] != NEVER
        in_sight, left_out = items[is_in_sight], items[~is_in_sight].tolist()
        for item in in_sight[np.argsort(next_turns[in_sight], kind="stable")].tolist():
            if self.kept_bytes + self._sizes[item] > self.capacity_bytes:
                left_out.append(item)
            else:
                self._keep(item, int(next_turns[item]))
        return tuple(sorted(left_out))

    def shrink(self, capacity_bytes: int) -> tuple[int, ...]:
        """Lets the farthest go until the rest fits into less room."""
        self.capacity_bytes = capacity_bytes
        gone = []
        while self.kept_bytes > capacity_bytes:
            _, item = self._farthest()
            self._let_go(item)
            gone.append(item)
        return tuple(gone)

    def _victims(self, item: int, next_turn: int) -> list[int] | None:
        """What must go to make room, or None when all of it would be used sooner than `item`."""
        missing_bytes = self.kept_bytes + self._sizes[item] - self.capacity_bytes
        victims: list[int] = []
        while missing_bytes > 0:
            victim_turn, victim = self._farthest()
            if victim_turn < next_turn:
                for spared in victims:
                    heapq.heappush(self._heap, self._code(self._next[spared], spared))
                return None
            heapq.heappop(self._heap)
            victims.append(victim)
            missing_bytes -= self._sizes[victim]
        return victims

    def _farthest(self) -> tuple[int, int]:
        while True:
            turn, item = self._decode(self._heap[0])
            if self._next[item] == turn:
                return turn, item
            heapq.heappop(self._heap)

    def _keep(self, item: int, next_turn: int) -> None:
        self._next[item] = next_turn
        self.kept_bytes += self._sizes[item]
        heapq.heappush(self._heap, self._code(next_turn, item))

    def _let_go(self, item: int) -> None:
        self._next[item] = NEVER
        self.kept_bytes -= self._sizes[item]

    # one integer instead of a tuple: a million kept samples are then 40 MB of heap, not 150
    def _code(self, turn: int, item: int) -> int:
        return (_FAR - turn) * len(self._next) + item

    def _decode(self, code: int) -> tuple[int, int]:
        from_far, item = divmod(code, len(self._next))
        return _FAR - from_far, item


class Plan:
    """The turns of a node, one after the other, each with what is kept before and let go after it."""

    def __init__(
        self,
        course: Course,
        *,
        start_time: int,
        sizes_bytes: NDArray[np.int64],
        capacity_bytes: int,
        item_of_sample: NDArray[np.int64] | None = None,
        present: NDArray[np.int64] | None = None,
    ) -> None:
        self.keeper = Keeper(sizes_bytes, capacity_bytes)
        self._course = course
        self._item_of_sample = item_of_sample
        self._num_items = len(sizes_bytes)
        self._look_ahead(start_time)
        found = np.empty(0, dtype=np.int64) if present is None else present
        self.unwanted = self.keeper.adopt(found, self._first_turns())
        """Items of `present` that the plan has no use for."""

    def next_time(self) -> int:
        """Of the turn to come; beyond all times when nothing is to be read."""
        return self._times[self._turn] if self._turn < len(self._times) else _FAR

    def next_item(self) -> int:
        return self._items[self._turn]

    def take_turn(self) -> Turn:
        turn = self._turn
        item, time = self._items[turn], self._times[turn]
        is_kept_before = self.keeper.is_kept(item)
        leaving = self.keeper.use(item, self._next[turn])
        self._turn += 1
        if self._turn == self._renew_at:
            self._look_ahead(time + 1)
            leaving += self.keeper.renew(self._first_turns())
        return Turn(time=time, item=item, is_kept_before=is_kept_before, leaving=leaving)

    def _look_ahead(self, start_time: int) -> None:
        """Lays out the turns to the end of the next epoch, or further where a node has only a share of each epoch."""
        self._times, self._items, self._next = array("q"), array("i"), array("i")
        times, samples = self._course.horizon(start_time, _MAX_TURNS)
        items = samples if self._item_of_sample is None else self._item_of_sample[samples]
        # to the end of this epoch every next use lies in sight: then look again
        num_turns = int(np.searchsorted(times, self._course.epoch_end(start_time)))
        self._renew_at = max(1, num_turns if num_turns < len(times) else len(times) // 2)
        # 32 bits are enough for turns, and for items as far as pages go
        self._times = array("q", times.astype(np.int64).tobytes())
        self._items = array("i", items.astype(np.int32).tobytes())
        self._next = array("i", next_uses(items).astype(np.int32).tobytes())
        self._turn = 0

    def _first_turns(self) -> NDArray[np.int64]:
        first = np.full(self._num_items, NEVER, dtype=np.int64)
        items = np.frombuffer(self._items, dtype=np.int32)
        # of several values for one place the last stays, which is the earliest turn
        first[items[::-1]] = np.arange(len(items) - 1, -1, -1)
        return first
