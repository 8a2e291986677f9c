"""Steps taken one by one agree with the closed form, and do what each cause must."""

from dataclasses import replace
from math import hypot

import numpy as np
import pytest

from topout.study.curve import curve, interval, node_counts, own_error, warnings
from topout.study.description import Ranged, put, read_job, read_system
from topout.study.simulate import Slow, simulate
from topout.study.step_model import PARTS, Step, expected_step
from topout.study.storage import samples_per_s
from topout.study.system import LocalStorage, SharedStorage

JOB = read_job("resnet50-v100").value
SUMMIT = read_system("summit").value


@pytest.mark.parametrize("nodes", [1, 16, 128, 1024, 4608])
def test_simulated_and_expected_steps_agree_to_half_a_per_cent(nodes):
    found = simulate(JOB, SUMMIT, nodes).step
    assert found.seconds == pytest.approx(expected_step(JOB, SUMMIT, nodes).seconds, rel=0.005)


def test_parts_add_up_to_the_step():
    step = simulate(JOB, SUMMIT, 64).step
    assert step.seconds == pytest.approx(sum(step.parts.values()))
    assert step.samples_per_s == pytest.approx(64 * 6 * 256 / step.seconds)
    assert min(step.parts.values()) >= 0


def test_storage_that_serves_a_quarter_holds_training_to_a_quarter():
    job = put(put(JOB, ("input", "source"), "shared"), ("input", "sample_bytes"), 3 * 224 * 224 * 4)
    step = simulate(job, SUMMIT, 4608).step
    served = 2.5e12 / (3 * 224 * 224 * 4)
    assert step.samples_per_s == pytest.approx(served, rel=0.01)
    assert step.seconds == pytest.approx(expected_step(job, SUMMIT, 4608).seconds, rel=0.005)


@pytest.mark.parametrize(
    ("source", "missing"),
    [("shared", "[shared_storage]"), ("local", "[local_storage]"), ("cached", "[shared_storage]")],
)
def test_storage_that_is_not_described_is_no_limit_and_that_is_said(source, missing):
    bare = replace(SUMMIT, shared_storage=SharedStorage(), local_storage=LocalStorage())
    given = replace(JOB.input, source=source, sample_bytes=1e5, dataset_bytes=1e12)
    step = simulate(replace(JOB, input=given), bare, 4).step
    assert step.parts["input"] == 0
    assert expected_step(replace(JOB, input=given), bare, 4).parts["input"] == 0
    said = warnings(Ranged(replace(JOB, input=given), {}), Ranged(bare, {}), [4])
    assert any(missing in line and "no limit" in line for line in said)
    full = warnings(Ranged(replace(JOB, input=given), {}), Ranged(SUMMIT, {}), [4])
    assert not any("no limit" in line for line in full)


def test_a_limit_that_is_known_holds_though_others_are_not():
    given = replace(JOB.input, source="shared", sample_bytes=1e6, opens_per_sample=1.0)
    # a client of 1 GB/s reads 1,000 samples a second of one MB, and servers that open 2,000 serve four nodes 500 each
    client = replace(SUMMIT, shared_storage=SharedStorage(client_bytes_per_s=1e9))
    assert samples_per_s(given, 4, client) == pytest.approx(1000)
    opens = replace(SUMMIT, shared_storage=SharedStorage(opens_per_s=2000, client_bytes_per_s=1e12))
    assert samples_per_s(given, 4, opens) == pytest.approx(500)


def test_one_slow_rank_of_thousands_slows_all_of_them():
    job = put(JOB, ("compute", "transient"), 0.0)
    alone = simulate(job, SUMMIT, 1024).step.seconds
    assert simulate(job, SUMMIT, 1024, slow=Slow(1, 1.5)).step.seconds == pytest.approx(1.5 * alone, rel=0.01)


def test_prefetching_hides_spread_of_input_but_no_lack_of_it():
    job = replace(JOB, compute=replace(JOB.compute, transient=0.0))
    quick = put(put(job, ("input", "spread"), 0.3), ("input", "loader_samples_per_s"), 1000.0)
    assert simulate(quick, SUMMIT, 1).step.parts["input"] < 0.02 * simulate(quick, SUMMIT, 1).step.seconds
    slow = put(job, ("input", "loader_samples_per_s"), 500.0)
    assert simulate(slow, SUMMIT, 1).step.samples_per_s == pytest.approx(6 * 500, rel=0.01)


@pytest.mark.parametrize("prefetch", [1, 2, 4])
@pytest.mark.parametrize("loader_samples_per_s", [500.0, 1000.0])
def test_a_batch_is_fetched_while_the_step_before_runs(prefetch, loader_samples_per_s):
    given = replace(JOB.input, source="local", prefetch=prefetch, loader_samples_per_s=loader_samples_per_s)
    job = replace(JOB, compute=replace(JOB.compute, transient=0.0), input=given)
    expected = expected_step(job, SUMMIT, 2)
    # 256 samples take 512 or 256 ms, and the step 342
    assert (expected.parts["input"] > 0) == (loader_samples_per_s == 500)
    assert simulate(job, SUMMIT, 2).step.seconds == pytest.approx(expected.seconds, rel=0.005)


def test_a_serial_evaluation_weighs_more_with_every_node():
    job = put(JOB, ("evaluation",), replace(JOB.evaluation, samples=50_000, samples_per_s=1000, every_steps=100))
    sharded = [expected_step(job, SUMMIT, nodes).parts["evaluation"] for nodes in (1, 10)]
    serial_job = put(job, ("evaluation", "is_sharded"), False)
    serial = [expected_step(serial_job, SUMMIT, nodes).parts["evaluation"] for nodes in (1, 10)]
    assert sharded[1] == pytest.approx(sharded[0] / 10)
    assert serial == [0.5, 0.5]


@pytest.mark.parametrize("nodes", [1, 8])
def test_what_comes_once_an_epoch_comes_in_fewer_steps_of_more_nodes(nodes):
    epoch = 100 * 6 * 256
    evaluation = replace(JOB.evaluation, samples=50_000, samples_per_s=1000, every_samples=epoch, is_sharded=False)
    checkpoint = replace(JOB.checkpoint, bytes=10e9, bytes_per_s=1e9, every_samples=epoch)
    job = replace(JOB, evaluation=evaluation, checkpoint=checkpoint)
    # 50 and 10 s in an epoch, which has 100 steps on a node of six ranks
    for step in (expected_step(job, SUMMIT, nodes), simulate(job, SUMMIT, nodes, steps=20).step):
        assert step.parts["evaluation"] == pytest.approx(50 / 100 * nodes)
        assert step.parts["checkpoint"] == pytest.approx(10 / 100 * nodes)


def test_checkpoints_and_failures_cost_what_arithmetic_says():
    job = put(JOB, ("checkpoint",), replace(JOB.checkpoint, bytes=1e9, every_steps=100, bytes_per_s=1e9))
    assert expected_step(job, SUMMIT, 1).parts["checkpoint"] == pytest.approx(0.01)
    job = put(job, ("failures",), replace(JOB.failures, node_hours=1000.0, restart_s=60.0))
    step = expected_step(job, SUMMIT, 100)
    whole = step.seconds - step.parts["failures"]
    assert step.parts["failures"] == pytest.approx(whole * (60 + 50 * whole) * 100 / 3.6e6)
    assert expected_step(put(job, ("checkpoint", "is_blocking"), False), SUMMIT, 1).parts["checkpoint"] == 0


def test_an_interval_is_as_wide_as_the_ranges_make_it():
    plain = Ranged(JOB, {})
    point = curve(plain, Ranged(SUMMIT, {}), [16], steps=20)[0]
    assert point.low == point.high == point.samples_per_s
    wide = Ranged(JOB, {("compute", "backward_s"): (0.9 * JOB.compute.backward_s, 1.1 * JOB.compute.backward_s)})
    point = curve(wide, Ranged(SUMMIT, {}), [16], steps=20)[0]
    # two thirds of the step vary by a tenth, and the model has an error of its own
    own = own_error(point.step)
    assert point.high / point.samples_per_s - 1 == pytest.approx(hypot(0.067, own), abs=0.015)
    assert 1 - point.low / point.samples_per_s == pytest.approx(hypot(0.063, own), abs=0.015)


def test_no_interval_of_a_prediction_reaches_below_zero():
    parts = dict.fromkeys(PARTS, 0.0) | {"compute": 0.01, "communication": 0.99}
    # drawn ones of a thousandth of the rate, of which the model is off by a third besides
    low, high = interval(100.0, np.array([0.001]), own_error(Step(parts, 100)))
    assert low == 0 < high


def test_what_slows_one_node_as_it_does_many_leaves_their_efficiency_alone():
    """Two thirds of a step vary by a tenth, of one node as of 16: rates do, their ratio does not."""
    wide = Ranged(JOB, {("compute", "backward_s"): (0.9 * JOB.compute.backward_s, 1.1 * JOB.compute.backward_s)})
    one, many = curve(wide, Ranged(SUMMIT, {}), [1, 16], steps=20)
    assert one.efficiency_range == (1.0, 1.0)
    low, high = many.efficiency_range
    own = hypot(own_error(one.step), own_error(many.step))
    assert high / many.efficiency - 1 == pytest.approx(own, abs=0.002)
    assert 1 - low / many.efficiency == pytest.approx(own, abs=0.002)
    assert curve(Ranged(JOB, {}), Ranged(SUMMIT, {}), [16], steps=20)[0].efficiency_range is None


def test_what_slows_many_nodes_alone_makes_their_efficiency_doubtful():
    job = put(JOB, ("gradients", "overlaps"), False)
    rate = SUMMIT.between.bytes_per_s
    point = curve(Ranged(job, {}), Ranged(SUMMIT, {("between", "bytes_per_s"): (rate / 10, rate)}), [16], steps=20)[0]
    # one node does not use that link
    assert point.efficiency_range[0] / point.efficiency == pytest.approx(point.low / point.samples_per_s, abs=0.01)
    assert point.efficiency_range[0] < 0.9 * point.efficiency


def test_failures_without_checkpoints_are_said_to_cost_more():
    failing = put(JOB, ("failures", "node_hours"), 1000.0)
    said = [line for line in warnings(Ranged(failing, {}), Ranged(SUMMIT, {}), [4]) if "loses all" in line]
    assert len(said) == 1 and "topout simulate --failures" in said[0]
    saved = put(failing, ("checkpoint", "every_steps"), 100)
    by_epoch = put(failing, ("checkpoint", "every_samples"), 1e6)
    for quiet in (JOB, saved, by_epoch):
        assert not any("loses all" in line for line in warnings(Ranged(quiet, {}), Ranged(SUMMIT, {}), [4]))


def test_far_beyond_what_was_measured_there_is_a_warning():
    job, system = read_job("resnet50-1080ti"), read_system("summit")
    assert any("16" in line for line in warnings(job, system, [128]))
    assert not any("times" in line for line in warnings(job, system, [64]))


def test_node_counts_are_lists_or_powers_of_two():
    assert node_counts("1..6") == [1, 2, 4, 6]
    assert node_counts("3,5") == [3, 5]
