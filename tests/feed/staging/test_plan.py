"""What is kept is what Belady would keep: nothing fetches less."""

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topout.epoch.order import order
from topout.epoch.partition import Partition
from topout.feed.staging.course import EpochCourse, ListingCourse
from topout.feed.staging.plan import NEVER, Keeper, Plan, next_uses


@dataclass(frozen=True, kw_only=True)
class Written:
    """A course that is written down; it ends."""

    items: tuple[int, ...]
    key: str = "written"
    margin: int = 0
    turns_at_once: int = 1
    lookahead: int = 1 << 30

    def horizon(self, start_time, max_turns):
        times = np.arange(start_time, len(self.items))[:max_turns]
        return times, np.array(self.items, dtype=np.int64)[times]

    def epoch_end(self, _time):
        return len(self.items)


def ones(count):
    return np.ones(count, dtype=np.int64)


def planned_misses(items, num_items, capacity):
    keeper, following = Keeper(ones(num_items), capacity), next_uses(np.array(items, dtype=np.int64))
    misses = 0
    for turn, item in enumerate(items):
        misses += not keeper.is_kept(item)
        keeper.use(item, int(following[turn]))
        assert keeper.kept_bytes == len(keeper.kept()) <= capacity
    return misses


def fewest_misses(items, capacity):
    """By trying everything: after each use, any part of what was there and the item may stay."""

    @cache
    def from_turn(turn, there):
        if turn == len(items):
            return 0
        after = there | {items[turn]}
        kept = [after] if len(after) <= capacity else [after - {item} for item in after]
        return (items[turn] not in there) + min(from_turn(turn + 1, choice) for choice in kept)

    return from_turn(0, frozenset())


def test_the_next_use_of_each_turn_is_found():
    assert next_uses(np.array([5, 2, 5, 5, 2])).tolist() == [2, 4, 3, NEVER, NEVER]


def test_the_farthest_next_use_goes_first():
    keeper = Keeper(ones(4), 2)
    assert keeper.use(0, 10) == ()
    assert keeper.use(1, 5) == ()
    assert keeper.use(2, 7) == (0,)
    assert keeper.kept().tolist() == [1, 2]


def test_what_is_used_later_than_all_that_is_kept_is_not_kept():
    keeper = Keeper(ones(4), 2)
    keeper.use(0, 10)
    keeper.use(1, 5)
    assert keeper.use(2, 11) == (2,)
    assert keeper.kept().tolist() == [0, 1]


def test_a_large_item_does_not_drive_out_what_is_needed_before_it():
    keeper = Keeper(np.array([1, 1, 2]), 2)
    keeper.use(0, 10)
    keeper.use(1, 5)
    # it would take both places, and 1 is used before it: then 0 stays as well
    assert keeper.use(2, 7) == (2,)
    assert keeper.kept().tolist() == [0, 1]


def test_less_room_lets_the_farthest_go():
    keeper = Keeper(ones(3), 3)
    for item, turn in enumerate((8, 3, 5)):
        keeper.use(item, turn)
    assert keeper.shrink(1) == (0, 2)
    assert keeper.kept().tolist() == [1]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 4), max_size=11), st.integers(1, 4))
def test_no_choice_has_fewer_misses(items, capacity):
    assert planned_misses(items, 5, capacity) == fewest_misses(tuple(items), capacity)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 30), max_size=200), st.integers(1, 30))
def test_the_plan_is_never_worse_than_keeping_the_latest(items, capacity):
    assert planned_misses(items, 31, capacity) <= len(items) - sum(hits_of_lru(items, capacity))


def hits_of_lru(items, capacity):
    there, hits = {}, []
    for item in items:
        hits.append(item in there)
        there.pop(item, None)
        there[item] = True
        if len(there) > capacity:
            there.pop(next(iter(there)))
    return hits


@pytest.mark.parametrize(
    ("num_nodes", "share", "belady", "lru"),
    [
        (1, 0.125, 0.125, 0.008),
        (1, 0.25, 0.25, 0.034),
        (1, 0.5, 0.5, 0.153),
        (4, 0.125, 0.372, 0.031),
        (4, 0.25, 0.558, 0.138),
        (4, 0.5, 0.784, 0.421),
    ],
)
def test_hit_rates_under_a_global_shuffle(num_nodes, share, belady, lru):
    """The figures of docs/staging.md. One node reads everything once an epoch: no more than the store can be hits."""
    num_samples = 2000
    course = EpochCourse(
        name="a",
        order_of=lambda epoch: order(7, epoch, num_samples),
        num_positions=num_samples,
        batch_size=25,
        world_size=num_nodes,
    )
    capacity = int(num_samples * share)
    plan = Plan(course, start_time=0, sizes_bytes=ones(num_samples), capacity_bytes=capacity)
    turns = [plan.take_turn() for _ in range(8 * num_samples)]
    settled = slice(4 * num_samples, None)
    hits = [turn.is_kept_before for turn in turns]
    assert np.mean(hits[settled]) == pytest.approx(belady, abs=0.01)
    assert np.mean(hits_of_lru([turn.item for turn in turns], capacity)[settled]) == pytest.approx(lru, abs=0.01)


def test_a_plan_over_epochs_keeps_what_the_whole_sequence_would():
    """Looking ahead to the end of the next epoch is as good as knowing everything."""
    num_samples, capacity = 60, 20
    course = EpochCourse(
        name="a",
        order_of=lambda epoch: order(3, epoch, num_samples),
        num_positions=num_samples,
        batch_size=4,
    )
    plan = Plan(course, start_time=0, sizes_bytes=ones(num_samples), capacity_bytes=capacity)
    turns = [plan.take_turn() for _ in range(6 * num_samples)]
    items = np.concatenate([order(3, epoch, num_samples).at(np.arange(num_samples)) for epoch in range(8)]).tolist()
    keeper, following = Keeper(ones(num_samples), capacity), next_uses(np.array(items))
    for number, turn in enumerate(turns):
        assert (turn.time, turn.item) == (number, items[number])
        assert turn.is_kept_before == keeper.is_kept(turn.item)
        keeper.use(turn.item, int(following[number]))


def test_a_plan_starts_with_what_it_finds():
    plan = Plan(
        Written(items=(3, 1, 2, 3, 1)),
        start_time=0,
        sizes_bytes=ones(6),
        capacity_bytes=2,
        present=np.array([2, 3, 5]),
    )
    # 3 and 2 are used first of all; 5 is not used at all
    assert plan.unwanted == (5,)
    assert [plan.take_turn().is_kept_before for _ in range(3)] == [True, False, True]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(1, 5),
    st.sampled_from(["drop", "pad", "exact"]),
    st.integers(0, 39),
    st.integers(1, 40),
)
def test_the_nodes_of_a_job_see_what_its_ranks_read(num_nodes, batch_size, last, start, num_positions):
    world_size, start = 2 * num_nodes, min(start, num_positions - 1)
    for node in range(num_nodes):
        ranks = (2 * node, 2 * node + 1)
        course = EpochCourse(
            name="a",
            order_of=lambda epoch: order(3, epoch, num_positions),
            num_positions=num_positions,
            batch_size=batch_size,
            world_size=world_size,
            ranks=ranks,
            last=last,
            start_epoch=2,
            start_position=start,
        )
        times, samples = course.horizon(course.start_time, 1 << 20)
        read = []
        for epoch, first in ((2, start), (3, 0)):
            for rank in ranks:
                partition = Partition(
                    num_positions=num_positions,
                    batch_size=batch_size,
                    rank=rank,
                    world_size=world_size,
                    last=last,
                    start=first,
                )
                positions = np.concatenate([np.empty(0, int), *map(partition.batch, range(len(partition)))])
                positions = positions[positions < num_positions]
                numbers = order(3, epoch, num_positions).at(positions)
                read += [(epoch * num_positions + at, number) for at, number in zip(positions, numbers, strict=True)]
        seen = [pair for pair in zip(times.tolist(), samples.tolist(), strict=True) if pair[0] < 4 * num_positions]
        assert seen == sorted(read)


def test_a_node_sees_only_its_pack_of_a_mixture():
    course = EpochCourse(
        name="a",
        order_of=lambda epoch: order(3, epoch, 10),
        num_positions=10,
        batch_size=2,
        first_sample=4,
        num_samples=3,
    )
    times, samples = course.horizon(0, 1 << 20)
    assert sorted(samples[times < 10].tolist()) == [0, 1, 2]


def test_courses_with_another_start_are_told_apart():
    options = {"name": "a", "order_of": lambda epoch: order(3, epoch, 9), "num_positions": 9, "batch_size": 2}
    assert EpochCourse(**options).key == EpochCourse(**options).key
    assert EpochCourse(**options).key != EpochCourse(**options, start_position=4).key


def test_without_an_order_samples_come_as_they_are_listed():
    times, samples = ListingCourse(num_samples=4).horizon(2, 5)
    assert (times.tolist(), samples.tolist()) == ([2, 3, 4, 5, 6], [2, 3, 0, 1, 2])
