"""Comparing finds differences that are there, and does not find those that are not."""

import json
import shlex

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tables import START_NS, Plan, Rows, StepPlan, build_run
from topout.schema.errors import TopoutError
from topout.schema.event import Kind
from topout.schema.run_folder import RunFolder
from topout.verify import runs
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


def lag_by_lag(steps):
    """The definition of a block's length, at a price that grows with the square of the number of steps."""
    centred = steps - steps.mean()
    variance = float(centred @ centred)
    reach = 1
    while variance > 0 and reach < len(steps) // 4:
        if float(centred[reach:] @ centred[:-reach]) / variance <= 2 / np.sqrt(len(steps)):
            break
        reach += 1
    return int(min(max(reach, np.ceil(len(steps) ** (1 / 3))), len(steps) // 4))


@settings(max_examples=200, deadline=None)
@given(
    num_steps=st.integers(FEWEST_STEPS, 400),
    wave=st.integers(2, 800),
    noise=st.sampled_from([0.0, 1e-6, 0.1, 1.0]),
    kind=st.sampled_from(["waves", "drift", "two values", "equal"]),
    seed=st.integers(0, 1000),
)
def test_blocks_are_as_long_as_lag_by_lag(num_steps, wave, noise, kind, seed):
    random = np.random.default_rng(seed)
    steps = {
        "waves": np.sin(np.arange(num_steps) * 2 * np.pi / wave),
        "drift": random.standard_normal(num_steps).cumsum(),
        "two values": random.integers(0, 2, num_steps).astype(np.float64),
        "equal": np.zeros(num_steps),
    }[kind]
    steps = MS * (50 + steps + noise * random.standard_normal(num_steps))
    assert block_length(steps) == lag_by_lag(steps)


def test_many_steps_that_drift_slowly_are_not_looked_at_lag_by_lag():
    looks = []

    class Counted(np.ndarray):
        def __matmul__(self, other):
            looks.append(len(self))
            return np.asarray(self) @ np.asarray(other)

    steps = 50 + np.sin(np.linspace(0, np.pi / 2, 100_000))
    assert block_length(steps.view(Counted)) == 25_000
    assert len(looks) <= 2


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
    # 95 % of 200 is 190
    assert 182 <= covered <= 198


def alike(mean_ms, num_steps, seed, correlation=0.8, spread=0.05):
    """Each step resembles the one before it."""
    random = np.random.default_rng(seed).standard_normal(num_steps)
    noise = random.copy()
    for step in range(1, num_steps):
        noise[step] = correlation * noise[step - 1] + np.sqrt(1 - correlation**2) * random[step]
    return MS * mean_ms * (1 + spread * noise)


@pytest.mark.parametrize("num_steps", [40, 200])
def test_steps_that_resemble_their_neighbours_differ_no_more_often_than_the_interval_says(num_steps):
    pairs = [(alike(50, num_steps, 2 * seed), alike(50, num_steps, 2 * seed + 1)) for seed in range(300)]
    found = [compared(*pair, num_resamples=400).result for pair in pairs]
    # 15 of 300 is what 95 % allow; blocks alone gave 90 with 40 steps and 59 with 200
    assert len(found) - found.count("no difference found") <= 24


def test_a_phase_is_judged_by_the_likeness_of_its_own_steps():
    found = 0
    for seed in range(300):
        a, b = (
            np.column_stack([noisy(50, 100, 600 + own, spread=0.2), alike(10, 100, own)])
            for own in (2 * seed, 2 * seed + 1)
        )
        both = compare_steps(a.sum(axis=1), b.sum(axis=1), a, b, phases=PHASES, num_resamples=400)
        found += both.phases[1].is_found
    # blocks alone, of the length that the whole steps need, gave 92
    assert found <= 24


@pytest.mark.parametrize(("num_steps", "factor"), [(10, 1.2), (200, 1.03)])
def test_what_stands_out_of_independent_noise_is_found(num_steps, factor):
    found = [
        compared(noisy(50, num_steps, 2 * seed), factor * noisy(50, num_steps, 2 * seed + 1), num_resamples=400).result
        for seed in range(100)
    ]
    assert found.count("slower") >= 95


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
    found = compared(np.array(a), np.array(b))
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


def trained(path, *, ms, size, batches=1, num_ranks=1, facts=None):
    """Steps of so many ms and so many batches on every rank."""
    part = int(ms / 2 * MS)
    steps = [StepPlan(forward=part, backward=part, samples=size, batches=batches)] * 20
    return build_run(path, [steps] * num_ranks, Plan(facts={"batch_size": size, **(facts or {})})).folder


@pytest.mark.parametrize(
    ("more", "samples"), [({"size": 64}, 64), ({"size": 16, "batches": 4}, 64), ({"size": 32, "num_ranks": 4}, 128)]
)
def test_steps_of_more_samples_are_judged_by_the_time_a_sample(tmp_path, more, samples):
    a, b = trained(tmp_path / "a", ms=10, size=32), trained(tmp_path / "b", ms=12, **more)
    found = compare_runs(a, b)
    assert (found.a_samples_per_step, found.b_samples_per_step) == (32, samples)
    assert found.ratio.value == pytest.approx(1.2)
    assert found.sample_ratio is not None
    assert found.sample_ratio.value == pytest.approx(1.2 * 32 / samples)
    assert (found.result, found.is_slower_by(0.03)) == ("faster", False)
    assert found.notes[-1].startswith(f"A step takes 32 samples in A and {samples} in B")
    # and the other way round
    back = compare_runs(b, a)
    assert (back.result, back.is_slower_by(0.03)) == ("slower", True)


@pytest.mark.parametrize("more", [{"size": 16, "batches": 4}, {"size": 16, "num_ranks": 4}, {"size": 64}])
def test_as_many_samples_in_other_pieces_are_the_same_work(tmp_path, more):
    found = compare_runs(trained(tmp_path / "a", ms=10, size=64), trained(tmp_path / "b", ms=12, **more))
    assert found.sample_ratio is None
    assert (found.result, found.ratio.value) == ("slower", pytest.approx(1.2))
    assert not any("amount of work" in note or "judged" in note for note in found.notes)


def test_ranks_that_share_their_samples_count_them_once(tmp_path):
    mesh = {"mesh_groups": {"g": {"name": "tp", "ranks": [0, 1]}}}
    one, two = (
        trained(tmp_path / "one", ms=10, size=64),
        trained(tmp_path / "two", ms=6, size=64, num_ranks=2, facts=mesh),
    )
    found = compare_runs(one, two)
    assert (found.b_samples_per_step, found.sample_ratio, found.result) == (64, None, "faster")
    assert found.notes == ("A ran on 1 rank and B on 2.",)


@pytest.mark.parametrize(
    ("size", "num_ranks", "last", "batches"),
    [
        (128, 2, 128, 1),
        (100, 8, 100, 1),
        (8, 16, 8, 1),
        # a batch that the window has not, one more, and a small one at the end of an epoch
        (128, 2, 0, 1),
        (128, 2, 256, 1),
        (128, 2, 8, 1),
        (32, 2, 32, 4),
    ],
)
def test_one_rank_that_loads_for_all_counts_its_samples_once(tmp_path, size, num_ranks, last, batches):
    plain = {"forward": 5 * int(MS), "backward": 5 * int(MS)}
    loading = [*[StepPlan(**plain, samples=size, batches=batches)] * 39, StepPlan(**plain, samples=last)]
    fed = [StepPlan(**plain, samples=0)] * 40
    run = build_run(tmp_path / "b", [loading, *[fed] * (num_ranks - 1)], Plan(facts={"batch_size": size})).folder
    found = compare_runs(trained(tmp_path / "a", ms=10, size=size, batches=batches), run)
    each = size * batches
    assert (found.a_samples_per_step, found.b_samples_per_step, found.sample_ratio) == (each, each, None)


def test_samples_that_are_not_those_of_the_batch_are_not_rounded(tmp_path):
    steps = [StepPlan(forward=int(10 * MS), samples=10 + (step % 4 == 0)) for step in range(20)]
    run = build_run(tmp_path / "b", [steps] * 8, Plan(facts={"batch_size": 64})).folder
    found = compare_runs(trained(tmp_path / "a", ms=10, size=32), run)
    assert found.b_samples_per_step == pytest.approx(8 * 10.25, rel=0.01)


def test_samples_of_loops_whose_computing_is_not_seen_are_not_counted(tmp_path, monkeypatch):
    """Any loader might be that of an evaluation."""
    monkeypatch.setattr(runs, "computes_unseen", lambda table: "jax_version" in table.facts)
    compiled = {"size": 32, "batches": 2, "facts": {"jax_version": "1"}}
    a, b = trained(tmp_path / "a", ms=10, size=32), trained(tmp_path / "b", ms=10, **compiled)
    found = compare_runs(a, b)
    assert (found.b_samples_per_step, found.sample_ratio) == (None, None)
    assert found.notes == ()


def test_smaller_batches_at_the_ends_of_epochs_are_no_other_batch(tmp_path):
    def run(name, *sizes):
        steps = [StepPlan(forward=int(10 * MS), samples=sizes[step % len(sizes)]) for step in range(20)]
        return build_run(tmp_path / name, [steps], Plan(facts={"batch_size": 64})).folder

    found = compare_runs(run("a", 64), run("b", 64, 64, 32))
    assert (found.sample_ratio, found.notes) == (None, ())


def test_more_batches_of_an_unknown_size_are_named(tmp_path):
    def run(name, batches):
        steps = [[StepPlan(forward=int(20 * MS), backward=int(20 * MS), samples=-1, batches=batches)] * 20]
        return build_run(tmp_path / name, steps).folder

    found = compare_runs(run("a", 1), run("b", 4))
    assert found.notes == (
        "A step of A takes 1 batch a rank and one of B 4 batches; a step is not the same amount of work.",
    )
    assert (found.a_samples_per_step, found.sample_ratio) == (None, None)


def test_a_run_without_steps_is_named_by_a_command_to_paste(tmp_path):
    run = trained(tmp_path / "my run", ms=10, size=32)
    run.events(0).write_bytes(b"")
    with pytest.raises(TopoutError, match="holds no steps") as caught:
        compare_runs(run, run)
    assert shlex.split(caught.value.do)[:3] == ["topout", "analyze", str(run.path)]


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


def test_batches_of_a_run_without_a_loader_are_not_guessed(tmp_path):
    def run(name, samples):
        steps = [[StepPlan(forward=20 * MS, backward=20 * MS, samples=samples, batches=4)] * 20]
        return build_run(tmp_path / name, steps, Plan(facts={"batch_size": 32} if samples else {})).folder

    assert compare_runs(run("a", 0), run("b", 32)).notes == ()
