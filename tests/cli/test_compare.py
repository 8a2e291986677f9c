"""`topout compare`: a planted difference is found, none is not invented, and CI gets its exit code."""

import json
import subprocess
import sys

import numpy as np
import pytest

from tests.tables import Plan, StepPlan, build_run

MS = 1_000_000


@pytest.fixture
def runs(tmp_path):
    """`same` and `again` differ by noise; `slow` has a backward of 12 ms instead of 10 ms."""

    def build(name, backward_ms, seed, num_steps=80, num_ranks=2):
        noise = np.random.default_rng(seed).uniform(0.97, 1.03, size=(num_ranks, num_steps))
        steps = [
            [StepPlan(forward=5 * MS, backward=int(backward_ms * MS * factor), optimizer=MS) for factor in row]
            for row in noise
        ]
        build_run(tmp_path / name, steps, Plan(transfer_ns=MS))

    build("same", 10, seed=0)
    build("again", 10, seed=1)
    build("slow", 12, seed=2)
    build("short", 10, seed=3, num_steps=5)
    build("alone", 10, seed=4, num_ranks=1)
    return tmp_path


def test_noise_is_no_difference(runs, run_topout):
    done = run_topout(["compare", "same", "again", "--fail-on", "3%"], cwd=runs)
    assert done.code == 0
    assert done.stdout.startswith("No difference found")
    assert done.stderr.splitlines()[-1].startswith("Next    topout analyze ")


def test_a_slower_run_fails_the_check_and_its_phase_is_marked(runs, run_topout):
    done = run_topout(["compare", "same", "slow", "--fail-on", "3%"], cwd=runs)
    assert done.code == 1
    assert done.stdout.startswith("B is slower: a step takes 1")
    marked = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("* ") and " ms" in line]
    assert marked == ["backward"]


@pytest.mark.parametrize("lost", ["| true", "2> >(true)", "2>&1 | true"])
def test_a_slower_run_fails_the_check_although_nobody_reads_it(runs, lost):
    line = f"{sys.executable} -m topout compare same slow --fail-on 3% {lost}"
    assert subprocess.run(["bash", "-o", "pipefail", "-c", line], cwd=runs, check=False).returncode == 1


def test_without_a_threshold_slower_is_only_said(runs, run_topout):
    assert run_topout(["compare", "same", "slow"], cwd=runs).code == 0


def test_a_faster_run_never_fails(runs, run_topout):
    done = run_topout(["compare", "slow", "same", "--fail-on", "3%"], cwd=runs)
    assert done.code == 0
    assert done.stdout.startswith("B is faster")


def test_a_threshold_beyond_the_difference_passes(runs, run_topout):
    assert run_topout(["compare", "same", "slow", "--fail-on", "0.5"], cwd=runs).code == 0


def test_json_holds_ratio_interval_phases_and_seed(runs, run_topout, torchless):
    done = run_topout(["compare", "same", "slow", "--json"], cwd=runs, env=torchless)
    document = json.loads(done.stdout)
    # a step is 5 + 10 + 1 + 1 ms and a little for the slower rank; B has 2 ms more
    assert document["ratio"]["low"] < 19 / 17 < document["ratio"]["high"]
    backward = next(item for item in document["phases"] if item["phase"] == "backward")
    assert backward["difference_ns"]["value"] == pytest.approx(2 * MS, rel=0.05)
    assert document["result"] == "slower"
    assert {"seed", "confidence", "num_resamples"} < set(document)


def test_more_ranks_are_judged_by_the_time_a_sample_and_both_rates_are_shown(tmp_path, run_topout):
    for name, ms, num_ranks in (("one", 10, 1), ("four", 12, 4)):
        steps = [StepPlan(forward=ms * MS // 2, backward=ms * MS // 2, samples=64)] * 40
        build_run(tmp_path / name, [steps] * num_ranks, Plan(facts={"batch_size": 64}))
    done = run_topout(["compare", "one", "four", "--fail-on", "3%"], cwd=tmp_path)
    assert done.code == 0, done.stderr
    answer, per_sample, per_step, a, b, *_ = done.stdout.splitlines()
    assert answer == "B is faster: a sample takes 70.0 % less time."
    assert per_sample.startswith("  time a sample B / A   0.300   95 % interval")
    assert per_step.startswith("  step time B / A       1.200   95 % interval")
    assert "10 ms a step over 39 steps, 6,400 samples/s" in a
    assert "12 ms a step over 39 steps, 21,333 samples/s" in b
    assert "Note: A ran on 1 rank and B on 4." in done.stdout
    assert done.stderr.splitlines()[-1] == "Next    topout analyze one"
    assert run_topout(["compare", "four", "one", "--fail-on", "3%"], cwd=tmp_path).code == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["same", "short"], "too few steps"),
        (["same", "absent"], "is not a run folder"),
        (["same"], "topout compare --help"),
        (["same", "slow", "--fail-on", "soon"], "is not a share"),
    ],
)
def test_what_cannot_be_compared_is_an_error_of_usage(arguments, said, runs, run_topout):
    done = run_topout(["compare", *arguments], cwd=runs)
    assert done.code == 2
    assert done.stdout == ""
    assert said in done.stderr
