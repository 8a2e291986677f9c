"""Loops without torch.optim have steps all the same, and gradients that add up are not taken for such."""

import json
import re

import pytest

from tests.conftest import REPOSITORY
from topout.schema.event import Kind
from topout.schema.run_folder import RunFolder
from topout.trace.readers.topout import read_run
from topout.trace.told_steps import has_steps_by_backward

SCRIPT = REPOSITORY / "tests" / "scripts" / "hand_loops.py"
TOLD = "Steps are told by backward(), since no torch.optim step was seen."


@pytest.fixture
def run_loop(run_topout, tmp_path):
    """A loop's exit code, its table, and its analysis unless it was to have none."""

    def run(loop, *flags):
        done = run_topout(["run", "--runs", tmp_path / "runs", *flags, SCRIPT, loop])
        (folder,) = (tmp_path / "runs").iterdir()
        (table,) = read_run(RunFolder(folder))
        analysis = folder / "analysis.json"
        return done, table, json.loads(analysis.read_text()) if analysis.exists() else None

    return run


def numbers(table):
    return table.ref[table.rows(Kind.STEP)].tolist()


def check_told_by_backward(done, table, analysis, num_steps):
    assert done.code == 0, done.stderr
    assert numbers(table) == list(range(num_steps))
    assert has_steps_by_backward(table)
    steps, backwards = table.rows(Kind.STEP), table.rows(Kind.BACKWARD)
    assert set(table.end_ns[steps]) <= set(table.end_ns[backwards])
    assert analysis["verdict"]["evidence"][1] == TOLD
    assert TOLD in done.stderr
    assert any("two backward() a step" in text.lower() for text in analysis["measures"]["not_measured"])


@pytest.mark.parametrize(("loop", "num_steps"), [("by_hand", 40), ("few", 6), ("twice", 80), ("checkpointed", 40)])
def test_every_backward_of_a_loop_without_an_optimizer_ends_a_step(run_loop, loop, num_steps):
    check_told_by_backward(*run_loop(loop), num_steps)


def test_a_loader_of_such_a_loop_is_known_and_what_follows_backward_is_the_update(run_loop):
    done, table, analysis = run_loop("loader")
    check_told_by_backward(done, table, analysis, 40)
    assert (table.facts["batch_size"], table.facts["num_workers"]) == (4, 1)
    assert analysis["measures"]["shares"]["optimizer"] > 0
    assert analysis["measures"]["compute"]["flops_per_step"] == 3 * 2 * 4 * (16 * 32 + 32 * 4)


@pytest.mark.parametrize("num_backwards", [8, 32])
def test_gradients_that_add_up_before_the_first_optimizer_step_end_no_step(run_loop, num_backwards):
    _, table, analysis = run_loop(f"accumulated_{num_backwards}")
    assert numbers(table) == list(range(10))
    assert not has_steps_by_backward(table)
    # the first one has all of its gradients in it
    first = table.rows(Kind.STEP)[0]
    assert table.start_ns[first] <= table.start_ns[table.rows(Kind.BACKWARD)[0]]
    assert TOLD not in analysis["verdict"]["evidence"]
    flops = 3 * 2 * 4 * (16 * 32 + 32 * 4) * num_backwards
    assert analysis["measures"]["compute"]["flops_per_step"] == flops


def test_steps_that_the_script_marks_itself_take_the_place_of_those_told_by_backward(run_loop):
    _, table, _ = run_loop("marked", "--no-report")
    assert numbers(table) == list(range(20))
    assert not has_steps_by_backward(table)


def test_a_script_that_fails_on_the_way_to_its_first_step_has_none(run_loop):
    done, table, analysis = run_loop("fails_early")
    assert done.code == 1
    assert numbers(table) == []
    assert analysis["verdict"] is None


def test_steps_told_by_backward_survive_a_death(run_loop):
    done, table, _ = run_loop("killed", "--no-report")
    assert done.code == 7
    assert len(numbers(table)) >= 200


def test_a_profile_of_steps_before_they_are_counted_is_noted(run_loop):
    _, _, analysis = run_loop("by_hand", "--profile", "3-5")
    assert any("choose a later window" in text for text in analysis["measures"]["not_measured"])


def test_a_loop_by_hand_trains_the_same_bits_with_and_without_the_recorder(run_topout, tmp_path):
    seen = []
    for flags in ([], ["--no-record"]):
        done = run_topout(["run", "--no-report", *flags, SCRIPT, "loader"], cwd=tmp_path)
        seen.append(re.findall(r"DIGEST (\w{64})", done.stdout))
    assert seen[0] == seen[1] != []
