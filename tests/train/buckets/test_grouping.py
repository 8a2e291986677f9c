"""The plan of groups is the best there is, checked against every plan of small cases."""

from dataclasses import replace
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from topout.train.buckets.autotune import is_sooner_in_fine
from topout.train.buckets.grouping import NEAR_ENOUGH, Gradient, as_ddp, fine, finish_s, group_bytes, plan
from topout.train.link import Link, link_between

MIB = 1 << 20
GIGABIT = Link(alpha_s=0.0002, bytes_per_s=119e6)


def gradients(*pairs: tuple[int, float]) -> list[Gradient]:
    return [Gradient(num_bytes=size, ready_s=ready_s) for size, ready_s in pairs]


def test_groups_travel_one_after_another_once_their_last_gradient_is_ready() -> None:
    link = Link(alpha_s=1.0, bytes_per_s=10.0)
    three = gradients((10, 0.0), (20, 5.0), (10, 6.0))
    # one group: waits until 6, then 1 + 4; each alone: 0 + 2, 5 + 3 = 8, 8 + 2
    assert finish_s(three, [3], link) == 11.0
    assert finish_s(three, [1, 2, 3], link) == 10.0
    assert finish_s(three, [1, 3], link) == 10.0


def test_of_equal_plans_the_one_with_fewer_groups_is_taken() -> None:
    three = gradients((10, 0.0), (20, 5.0), (10, 6.0))
    assert plan(three, Link(alpha_s=1.0, bytes_per_s=10.0)) == (1, 3)


def test_a_link_that_is_slow_to_begin_takes_one_group() -> None:
    many = gradients(*[(4096, number * 1e-5) for number in range(200)])
    assert plan(many, Link(alpha_s=0.01, bytes_per_s=1e9)) == (200,)


def test_a_narrow_link_begins_with_the_first_large_gradient() -> None:
    large = gradients(*[(8 * MIB, 0.01 * number) for number in range(6)])
    assert plan(large, GIGABIT)[0] == 1


def test_fine_groups_are_of_about_one_size_and_begin_small() -> None:
    link = Link(alpha_s=1.0, bytes_per_s=10.0)
    # 3,200 bytes are twenty groups of 160, whose bytes cost sixteen times alpha; one of them becomes two smaller
    ends = fine(gradients(*[(1, 0.0)] * 3200), link)
    sizes = group_bytes(gradients(*[(1, 0.0)] * 3200), ends)
    assert len(sizes) == 21
    assert sizes[:2] == (41, 81)
    assert all(abs(size - 162) <= 1 for size in sizes[2:])


def test_where_backward_takes_longer_than_the_link_fine_groups_are_all_of_one_size() -> None:
    link = Link(alpha_s=1.0, bytes_per_s=10.0)
    slowly = gradients(*[(1, 0.11 * number) for number in range(3200)])
    sizes = group_bytes(slowly, fine(slowly, link))
    assert len(sizes) == 20
    assert all(abs(size - 160) <= 1 for size in sizes)


def test_fine_groups_end_with_whole_gradients() -> None:
    link = Link(alpha_s=1.0, bytes_per_s=10.0)
    assert fine(gradients((50, 0.0), (33, 0.0), (77, 0.0), (5, 0.0)), link) == (1, 2, 4)
    assert fine(gradients((50, 0.0), (30, 0.0), (77, 0.0), (3, 0.0)), link) == (2, 4)
    # the first gradient alone is more than the first group
    assert fine(gradients((120, 0.0), (40, 0.0)), link) == (1, 2)
    assert fine(gradients((160, 0.0)), link) == (1,)


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=30), st.floats(1e-7, 1e-3), st.floats(1e5, 1e9))
def test_fine_groups_hold_every_gradient_once(sizes: list[int], alpha_s: float, bytes_per_s: float) -> None:
    ends = fine(gradients(*[(size, 0.0) for size in sizes]), Link(alpha_s=alpha_s, bytes_per_s=bytes_per_s))
    assert list(ends) == sorted(set(ends))
    assert ends[0] >= 1
    assert ends[-1] == len(sizes)


def test_sizes_of_groups_close_ddps_buckets_exactly_there() -> None:
    assert group_bytes(gradients((1, 0.0), (2, 0.0), (4, 0.0)), (1, 3)) == (1, 6)


def test_thousands_of_gradients_are_planned_by_runs_of_small_ones() -> None:
    many = gradients(*[(1000, number * 1e-6) for number in range(5000)])
    ends = plan(many, Link(alpha_s=1e-5, bytes_per_s=1e9))
    assert ends[-1] == 5000
    assert list(ends) == sorted(set(ends))


@given(
    st.lists(st.tuples(st.integers(1, 10_000), st.floats(0, 1e-3)), min_size=1, max_size=8),
    st.floats(1e-7, 1e-3),
    st.floats(1e5, 1e9),
)
def test_no_other_plan_finishes_earlier(pairs: list[tuple[int, float]], alpha_s: float, bytes_per_s: float) -> None:
    ready = sorted(ready_s for _, ready_s in pairs)
    in_order = gradients(*[(size, ready_s) for (size, _), ready_s in zip(pairs, ready, strict=True)])
    link = Link(alpha_s=alpha_s, bytes_per_s=bytes_per_s)
    count = len(in_order)
    every = [(*inner, count) for size in range(count) for inner in combinations(range(1, count), size)]
    best_s = min(finish_s(in_order, ends, link) for ends in every)
    assert finish_s(in_order, plan(in_order, link), link) <= best_s * (1 + NEAR_ENOUGH) * (1 + 1e-9)


def test_the_line_goes_through_both_messages() -> None:
    link = link_between(0.0001, 0.0361)
    assert abs(link.time_s(4096) - 0.0001) < 1e-6
    assert abs(link.time_s(4 << 20) - 0.0361) < 1e-6


def test_ddps_own_groups_end_with_the_gradient_that_fills_them() -> None:
    sizes = (MIB // 2, MIB // 2, 20 * MIB, 4 * MIB, MIB, 3 * MIB)
    assert as_ddp(gradients(*[(size, 0.0) for size in sizes])) == (2, 5, 6)
    assert as_ddp(gradients((2 * MIB, 0.0))) == (1,)
    assert as_ddp(gradients((1, 0.0), (1, 0.0))) == (2,)


def test_small_groups_are_expected_where_much_is_left_for_after_backward() -> None:
    many = gradients(*[(16 << 10, 0.001 * number) for number in range(100)])
    slow = Link(alpha_s=2e-4, bytes_per_s=50e6, busy_share=0.1)
    assert is_sooner_in_fine(many, slow, is_crowded=True)
    assert is_sooner_in_fine(many, slow, is_crowded=False)
    # nothing of it shows
    assert not is_sooner_in_fine(many, replace(slow, bytes_per_s=1e9), is_crowded=True)


def test_fewer_groups_are_expected_to_be_less_work_where_the_processor_that_computes_is_the_link() -> None:
    many = gradients(*[(16 << 10, 0.001 * number) for number in range(100)])
    loopback = Link(alpha_s=1e-4, bytes_per_s=1.5e9, busy_share=0.95)
    assert len(fine(many, loopback)) == 1
    assert is_sooner_in_fine(many, loopback, is_crowded=True)
    assert not is_sooner_in_fine(many, loopback, is_crowded=False)
    assert not is_sooner_in_fine(many, replace(loopback, alpha_s=1e-5), is_crowded=True)
