"""Groups of gradients by literals: threshold, cycle, smallest size, kinds, and gradients that never came."""

from topout.train.fusion.grouping import (
    FusionLimits,
    TensorFacts,
    group_tensors,
    limits_from,
    separate_kinds,
    split_evenly,
)

MB = 1 << 20
MS = 1_000_000


def facts(*sizes_mb: float, kind: str = "float32 cpu") -> list[TensorFacts]:
    return [TensorFacts(int(size * MB), kind) for size in sizes_mb]


def test_a_group_holds_what_is_ready_within_a_cycle() -> None:
    ready = {3: 0, 2: MS // 2, 1: 5 * MS, 0: 5 * MS + 1}
    assert group_tensors(facts(2, 2, 2, 2), ready, FusionLimits(cycle_ms=1.0)) == [[3, 2], [1, 0]]


def test_a_longer_cycle_makes_one_group() -> None:
    ready = {3: 0, 2: MS // 2, 1: 5 * MS, 0: 5 * MS + 1}
    assert group_tensors(facts(2, 2, 2, 2), ready, FusionLimits(cycle_ms=10.0)) == [[3, 2, 1, 0]]


def test_a_group_below_a_megabyte_waits_for_more_whatever_the_cycle() -> None:
    ready = {2: 0, 1: 50 * MS, 0: 100 * MS}
    assert group_tensors(facts(0.1, 0.1, 0.1), ready, FusionLimits(cycle_ms=1.0)) == [[2, 1, 0]]


def test_no_group_is_larger_than_the_threshold() -> None:
    limits = FusionLimits(threshold_bytes=3 * MB, cycle_ms=1000)
    assert group_tensors(facts(2, 1, 1), {0: 0, 1: 1, 2: 2}, limits) == [[0, 1], [2]]


def test_a_threshold_of_zero_fuses_nothing() -> None:
    assert group_tensors(facts(0.1, 0.1), {1: 0, 0: 1}, FusionLimits(threshold_bytes=0)) == [[1], [0]]


def test_what_never_came_stands_apart_at_the_end() -> None:
    assert group_tensors(facts(0.1, 0.1, 0.1), {2: 0, 0: 1}, FusionLimits()) == [[2, 0], [1]]


def test_kinds_are_not_mixed_and_groups_come_in_the_order_of_their_last() -> None:
    mixed = [*facts(0.1), *facts(0.1, kind="float16 cpu"), *facts(0.1)]
    assert group_tensors(mixed, {2: 0, 1: 1, 0: 2}, FusionLimits()) == [[1], [2, 0]]
    assert separate_kinds(mixed, [[0, 1, 2]]) == [[0, 2], [1]]


def test_tensors_split_into_so_many_groups() -> None:
    assert split_evenly(range(5), 2) == [[0, 1, 2], [3, 4]]
    assert split_evenly(range(2), 5) == [[0], [1]]


def test_limits_come_from_horovods_variables() -> None:
    assert limits_from({}) == FusionLimits(threshold_bytes=128 * MB, cycle_ms=1.0)
    given = {"HOROVOD_FUSION_THRESHOLD": "33554432", "HOROVOD_CYCLE_TIME": "3.5"}
    assert limits_from(given) == FusionLimits(threshold_bytes=32 * MB, cycle_ms=3.5)
    assert limits_from({"HOROVOD_CYCLE_TIME": "soon"}).cycle_ms == 1.0
