"""Comparing finds differences that are there, and does not find those that are not."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tables import START_NS, Plan, Rows, StepPlan, build_run
from topout.schema.errors import TopoutError
from topout.schema.event import Kind
from topout.schema.run_folder import RunFolder
from topout.verify.compare import FEWEST_STEPS, NUM_RESAMPLES, block_length, compare_steps
from topout.verify.runs import compare_runs

PHASES = ("forward", "wait")
MS = 1e6


def noisy(mean_ms, num_steps=200, seed=0, spread=0.05):
    return MS * mean_ms * (1 + spread * np.random.default_rng(seed).standard_normal(num_steps))


def compared(a_step_ns, b_step_ns, **kwargs):
    def halves(step_ns):
        return np.column_stack([step_ns / 2, step_ns / 2])

    return compare_steps(a_step_ns, b_step_ns, halves(a_step_ns), halves(b_step_ns), phases=PHASES, **kwargs)


def test_a_run_does_not_differ_from_itself():
    steps = noisy(50)
    found = compared(steps, steps)
    assert found.ratio.value == 1
    assert found.result == "no difference found"
    assert not found.is_slower_by(0.0)


def test_noise_alone_is_no_difference():
    assert compared(noisy(50, seed=1), noisy(50, seed=2)).result == "no difference found"


@pytest.mark.parametrize(("factor", "result"), [(1.1, "slower"), (0.9, "faster")])
def test_ten_per_cent_are_found_in_both_directions(factor, result):
    found = compared(noisy(50, seed=1), factor * noisy(50, seed=2))
    assert found.result == result
    assert found.ratio.low < factor < found.ratio.high
    assert found.ratio.high - found.ratio.low < 0.05


def test_constant_steps_give_the_exact_ratio():
    found = compared(np.full(40, 10 * MS), np.full(60, 12 * MS))
    assert found.ratio.value == pytest.approx(1.2)
    assert (found.ratio.low, found.ratio.high) == (pytest.approx(1.2), pytest.approx(1.2))
    assert (found.a_step_ns, found.b_step_ns) == (10 * MS, 12 * MS)
    assert (found.a_num_steps, found.b_num_steps) == (40, 60)
    assert found.is_slower_by(0.19)
    assert not found.is_slower_by(0.21)


def test_the_threshold_needs_the_whole_interval():
    found = compared(noisy(50, seed=1), 1.04 * noisy(50, seed=2))
    assert found.ratio.low < 1.04
    assert found.is_slower_by(found.ratio.low - 1.001)
    assert not found.is_slower_by(found.ratio.low - 0.999)


def test_the_phase_that_differs_is_told():
    forward = noisy(30, seed=3)
    a_wait, b_wait = noisy(10, seed=4), noisy(15, seed=5)
    found = compare_steps(
        forward + a_wait,
        forward + b_wait,
        np.column_stack([forward, a_wait]),
        np.column_stack([forward, b_wait]),
        phases=PHASES,
    )
    by_phase = {item.phase: item for item in found.phases}
    assert not by_phase["forward"].is_found
    assert by_phase["wait"].is_found
    assert by_phase["wait"].difference_ns.value == pytest.approx(5 * MS, rel=0.05)
    assert by_phase["wait"].difference_ns.low < 5 * MS < by_phase["wait"].difference_ns.high


def test_the_same_seed_gives_the_same_interval():
    a, b = noisy(50, seed=1), noisy(51, seed=2)
    assert compared(a, b) == compared(a, b)
    assert compared(a, b, seed=1).ratio != compared(a, b, seed=2).ratio
    assert compared(a, b).num_resamples == NUM_RESAMPLES


def test_steps_that_resemble_their_neighbours_are_drawn_in_longer_blocks():
    random = np.random.default_rng(0)
    independent = random.standard_normal(400)
    slow_waves = np.repeat(random.standard_normal(20), 20)
    assert block_length(independent) == 8  # the cube root of 400, rounded up
    assert 12 <= block_length(slow_waves) <= 40
    assert block_length(np.ones(400)) == 8


def test_slow_waves_make_the_interval_wider():
    random = np.random.default_rng(1)
    waves = np.repeat(random.standard_normal(20), 20)
    shuffled = random.permutation(waves)
    calm = np.full(400, 50 * MS)

    def width(noise):
        ratio = compared(calm, MS * (50 + noise)).ratio
        return ratio.high - ratio.low

    assert width(waves) > 2 * width(shuffled)


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    covered = 0
    for seed in range(200):
        ratio = compared(noisy(50, 100, seed=2 * seed), noisy(50, 100, seed=2 * seed + 1), num_resamples=400).ratio
        covered += ratio.low <= 1 <= ratio.high
    # 95 % of 200 is 190; with 100 steps the bootstrap is a little too sure
    assert 175 <= covered <= 200


def test_rounding_is_no_difference():
    # thirds of nanoseconds, as the mean over three ranks gives, do not add up exactly
    found = compared(np.full(50, 10 * MS / 3), np.full(83, 10 * MS / 3))
    assert found.result == "no difference found"
    assert [item.phase for item in found.phases if item.is_found] == []


@settings(deadline=None)
@given(
    st.lists(st.floats(1e3, 1e10), min_size=FEWEST_STEPS, max_size=40),
    st.lists(st.floats(1e3, 1e10), min_size=FEWEST_STEPS, max_size=40),
)
def test_intervals_are_finite_and_ordered(a, b):
    found = compared(np.array(a), np.array(b), num_resamples=50)
    assert 0 < found.ratio.low <= found.ratio.high < np.inf
    assert min(b) / max(a) * 0.999 <= found.ratio.value <= max(b) / min(a) * 1.001


@pytest.mark.parametrize(("num_a", "num_b", "name"), [(9, 50, "old"), (50, 9, "new"), (50, 0, "new")])
def test_too_few_steps_are_refused_by_name(num_a, num_b, name):
    with pytest.raises(TopoutError, match=f"{name} has too few steps"):
        compared(np.full(num_a, MS), np.full(num_b, MS), names=("old", "new"))


def unmet(path, durations_ms):
    """Ranks that never meet; `durations_ms[r]` are a rank's steps."""
    path.mkdir()
    folder = RunFolder(path)
    folder.run_json.write_text(json.dumps({"version": 1}))
    for rank, lengths in enumerate(durations_ms):
        rows, now = Rows(), START_NS
        for step, length in enumerate(lengths):
            rows.add(Kind.STEP, now, int(length * MS), ref=step)
            now += int(length * MS)
        folder.events(rank).write_bytes(b"".join(rows.blocks({"host": "n01"})))
    return folder


def test_ranks_that_are_slow_in_turns_are_not_slower_than_the_run_takes(tmp_path):
    turns = unmet(tmp_path / "turns", [[20, *[30, 10] * 20], [20, *[10, 30] * 20]])
    even = unmet(tmp_path / "even", [[22] * 41] * 2)
    found = compare_runs(turns, even)
    assert (found.a_step_ns, found.b_step_ns) == (pytest.approx(20 * MS), pytest.approx(22 * MS))
    assert found.result == "slower"


def test_a_run_that_goes_on_is_named(tmp_path):
    folders = [unmet(tmp_path / name, [[20] * 41]) for name in ("a", "b")]
    assert compare_runs(*folders).notes == ()
    folders[1].run_json.write_text(json.dumps({"version": 1, "status": "running"}))
    assert compare_runs(*folders).notes == ("B is still running; the figures are of what is recorded so far.",)
    folders[0].run_json.write_text(json.dumps({"version": 1, "status": "running"}))
    assert compare_runs(*folders).notes[0].startswith("A and B are still running;")


def test_steps_that_are_told_in_different_ways_are_named(tmp_path):
    a, b = (unmet(tmp_path / name, [[20] * 41]) for name in ("a", "b"))
    rows = Rows()
    for step in range(41):
        rows.add(Kind.STEP, START_NS + step * 20 * MS, 20 * MS, name="backward", ref=step)
    b.events(0).write_bytes(b"".join(rows.blocks({"host": "n01"})))
    (note,) = compare_runs(a, b).notes
    assert note.startswith("The steps of B are told by backward()")


def test_batches_of_different_sizes_are_named(tmp_path):
    steps = [[StepPlan(forward=int(5 * MS), backward=int(5 * MS))] * 20]
    a, b, same = (
        build_run(tmp_path / name, steps, Plan(facts={"batch_size": size})).folder
        for name, size in (("a", 32), ("b", 64), ("same", 32))
    )
    (note,) = compare_runs(a, b).notes
    assert note.startswith("A trains on batches of 32 a rank and B on batches of 64")
    assert compare_runs(a, same).notes == ()


def on_two_hosts(path, scatter_ns):
    """Rank 1 arrives 10 of 1000 ns later; its backward ends so much earlier or later in turns."""
    path.mkdir()
    folder = RunFolder(path)
    folder.run_json.write_text(json.dumps({"version": 1}))
    for rank in range(2):
        rows = Rows()
        for step in range(20):
            start = START_NS + 1000 * step
            rows.add(Kind.BACKWARD, start + 200, 700 + rank * scatter_ns * (-1) ** step)
            rows.add(Kind.ARRIVAL, start + 500 + 10 * rank, name="all_reduce", value=64, ref=step)
            rows.add(Kind.STEP, start, 1000, ref=step)
        facts = {"rank": rank, "host": f"n0{rank}", "clock_pairs": [[START_NS, START_NS]], "ended": True}
        folder.events(rank).write_bytes(b"".join(rows.blocks(facts)))
    return folder


def test_a_split_that_one_run_withholds_is_named(tmp_path):
    told, withheld = on_two_hosts(tmp_path / "told", 0), on_two_hosts(tmp_path / "withheld", 50)
    (note,) = compare_runs(told, withheld).notes
    assert note.startswith("Waiting counts as transfer in B")
    assert compare_runs(withheld, withheld).notes == ()
