"""What a walk fetches, keeps and lets go, with a store that only counts."""

from concurrent.futures import Future
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.feed.staging.packs import course_of
from topout.feed.staging.plan import Keeper, next_uses
from topout.feed.staging.walk import Walk, planned_bytes


class AtOnce:
    """Fetches when asked to."""

    def submit(self, function, *arguments):
        future = Future()
        try:
            future.set_result(function(*arguments))
        except OSError as error:
            future.set_exception(error)
        return future


class CountingStore:
    item_of_sample = None

    def __init__(self, sizes, capacity_bytes, present=()):
        self.sizes_bytes = np.array(sizes, dtype=np.int64)
        self.capacity_bytes = capacity_bytes
        self.there = set(present)
        self.reserved_bytes = int(self.sizes_bytes[sorted(self.there)].sum())
        self.num_fetched = 0
        self.is_disk_full = False
        self.bad = set()

    @property
    def free_bytes(self):
        return self.capacity_bytes - self.reserved_bytes

    def present(self):
        return np.array(sorted(self.there), dtype=np.int64)

    def reserve(self, item):
        self.reserved_bytes += int(self.sizes_bytes[item])
        assert self.reserved_bytes <= self.capacity_bytes, "more than there is room for"

    def fill(self, item, _reserved):
        if self.is_disk_full:
            raise OSError(28, "No space left on device")
        self.num_fetched += 1
        if item in self.bad:
            return False
        self.there.add(item)
        return True

    def cancel(self, item, _reserved):
        self.reserved_bytes -= int(self.sizes_bytes[item])

    def drop(self, item):
        self.there.remove(item)
        self.reserved_bytes -= int(self.sizes_bytes[item])


def walk_over(course, store, start_time=0):
    return Walk(course, store, AtOnce(), start_time=start_time, window_share=0.125, max_in_flight=1 << 30)


def settle(walk, now):
    for _ in range(3):
        while walk.step(now):
            pass


def test_all_is_fetched_once_when_it_fits():
    course, store = course_of(20, batch_size=1), CountingStore([1] * 20, 20)
    walk = walk_over(course, store)
    for time in range(100):
        settle(walk, time)
    assert store.num_fetched == 20
    assert store.there == set(range(20))


@pytest.mark.parametrize(("num_samples", "capacity"), [(200, 100), (200, 40), (500, 400)])
def test_no_more_is_fetched_than_belady_would(num_samples, capacity):
    """With time to fetch, everything is near when it is read, and what is fetched is what Belady misses."""
    course, store = course_of(num_samples, batch_size=1), CountingStore([1] * num_samples, capacity)
    walk = walk_over(course, store)
    numbers = np.concatenate([course.order_of(epoch).at(np.arange(num_samples)) for epoch in range(7)])
    num_turns = 5 * num_samples
    for time in range(num_turns):
        settle(walk, time)
        if time > 0:
            assert numbers[time] in store.there
    keeper, following = Keeper(store.sizes_bytes, planned_bytes(store, course, 0.125)), next_uses(numbers)
    misses = 0
    for turn, item in enumerate(numbers[:num_turns].tolist()):
        misses += not keeper.is_kept(item)
        keeper.use(item, int(following[turn]))
    # the walk is ahead by its window at most
    assert store.num_fetched <= misses + capacity - keeper.capacity_bytes


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 9), min_size=12, max_size=40),
    st.integers(10, 60),
    st.integers(1, 4),
    st.lists(st.integers(0, 6), min_size=1, max_size=40),
    st.sets(st.integers(0, 11)),
)
def test_nothing_goes_before_its_readers_have_passed_it(sizes, capacity, batch_size, steps, present):
    """Whatever the sizes and however the readers hurry or wait: what was near for a coming turn stays until then."""
    num_samples = len(sizes)
    course = course_of(num_samples, batch_size=batch_size)
    present = [item for item in sorted(present) if sum(sizes[other] for other in present if other <= item) <= capacity]
    store = CountingStore(sizes, capacity, present)
    walk = walk_over(course, store)
    numbers = np.concatenate([course.order_of(epoch).at(np.arange(num_samples)) for epoch in range(20)])
    now, times = 0, {}
    for step in steps:
        settle(walk, now)
        # turns that were taken while they were still to come, and whose item is near
        for time in range(now, min(walk.plan.next_time(), len(numbers))):
            is_read = time % num_samples < num_samples // batch_size * batch_size
            if is_read and int(numbers[time]) in store.there:
                times[time] = int(numbers[time])
        assert all(item in store.there for time, item in times.items() if time >= now)
        now += step


def test_what_comes_too_late_is_fetched_only_when_it_is_worth_keeping():
    course, store = course_of(40, batch_size=10), CountingStore([1] * 40, 20)
    walk = walk_over(course, store)
    settle(walk, 35)
    first = set(course.order_of(0).at(np.arange(40)).tolist())
    assert first == set(range(40))
    # nothing of the 35 turns behind is fetched for its own sake: the store holds what later turns need
    assert store.num_fetched <= 20
    assert store.there <= set(np.concatenate([course.order_of(e).at(np.arange(40)) for e in (0, 1)])[35:].tolist())


def test_a_full_disk_shrinks_the_budget():
    course, store = course_of(40, batch_size=1), CountingStore([1] * 40, 30)
    walk = walk_over(course, store)
    store.is_disk_full = True
    settle(walk, 0)
    assert store.capacity_bytes < 30
    store.is_disk_full = False
    capacity = store.capacity_bytes
    for time in range(200):
        settle(walk, time)
    assert len(store.there) <= capacity


def test_an_item_that_cannot_be_had_is_given_up_and_the_rest_goes_on():
    course, store = course_of(20, batch_size=1), CountingStore([1] * 20, 20)
    store.bad = {3, 4}
    failures = []
    walk = Walk(
        course, store, AtOnce(), start_time=0, window_share=0.125, max_in_flight=64, on_failure=failures.append
    )  # fmt: skip
    settle(walk, 0)
    assert store.there == set(range(20)) - {3, 4}
    assert failures
    assert set(failures) == {None}


def test_what_is_found_and_not_needed_makes_room():
    """Of ten samples, those of this pack's stretch are 0 to 4; the store is full of others."""
    course = replace(course_of(10, batch_size=1), num_samples=5)
    store = CountingStore([1] * 10, 5, present=[5, 6, 7, 8, 9])
    walk = walk_over(course, store)
    for time in range(40):
        settle(walk, time)
    assert store.there <= set(range(5))
