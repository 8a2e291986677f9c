"""A run folder becomes an analysis: facts of the launcher, measures, verdict, findings, and what is missing."""

import json

import pytest

from tests.tables import Plan, StepPlan, build_run
from topout.recommend import engine
from topout.recommend.explain import explain_run
from topout.record.keras_taps.facts import _UNSEEN

MS = 1_000_000


@pytest.fixture
def build(tmp_path):
    def build(step, run=None, num_steps=40):
        return build_run(tmp_path / "a-run", [[step] * num_steps], Plan(run=run or {})).folder

    return build


def test_a_starving_loader_is_found_with_its_share(build):
    # 6 of every 10 ms go into input
    step = StepPlan(input=6 * MS, forward=MS, backward=2 * MS, optimizer=MS)
    analysis = explain_run(build(step, {"spec": {"script": "train.py"}, "exit_code": 0, "duration_s": 3}))
    assert analysis.verdict is not None
    assert analysis.verdict.name.startswith("input-")
    (finding,) = [finding for finding in analysis.findings if finding.code == "IN01"]
    assert finding.gain_at_most == pytest.approx(0.6, abs=0.01)
    assert (analysis.run, analysis.script, analysis.status) == ("a-run", "train.py", "finished")
    assert (analysis.exit_code, analysis.duration_s) == (0, 3.0)


def test_blocking_checkpoints_are_found(build):
    analysis = explain_run(build(StepPlan(checkpoint=2 * MS, forward=3 * MS, backward=5 * MS)))
    assert analysis.findings[0].code == "CK01"
    assert analysis.findings[0].gain_at_most == pytest.approx(0.2, abs=0.01)


def test_a_job_that_computes_gives_no_finding(build):
    analysis = explain_run(build(StepPlan(forward=3 * MS, backward=6 * MS, optimizer=MS)))
    assert analysis.verdict is not None
    assert analysis.verdict.name == "compute"
    assert analysis.findings == ()


def test_notes_of_the_launcher_and_of_broken_rules_are_kept_once(build, monkeypatch):
    names = engine.plugin_names
    monkeypatch.setattr(engine, "plugin_names", lambda package: [*names(package), "from_outside"])
    analysis = explain_run(build(StepPlan(forward=MS), {"notes": ["A tap failed.", "A tap failed."]}))
    assert analysis.measures.not_measured.count("A tap failed.") == 1
    assert len([note for note in analysis.measures.not_measured if "from_outside" in note]) == 1


def test_a_ranks_note_is_said_once_though_the_launcher_heard_it_too(tmp_path):
    note = "--batch 8: there was no optimizer step"
    plan = Plan(facts={"notes": [note]}, run={"notes": [f"rank 0: {note}"]})
    analysis = explain_run(build_run(tmp_path / "a-run", [[StepPlan(forward=MS)] * 40], plan).folder)
    assert [said for said in analysis.measures.not_measured if note in said] == [f"Rank 0: {note}"]


def test_what_several_ranks_note_is_one_sentence(tmp_path):
    note = "this torch has no flight recorder"
    plan = Plan(facts={"notes": [note]}, run={"notes": [f"ranks 0-2: {note}"]})
    analysis = explain_run(build_run(tmp_path / "a-run", [[StepPlan(forward=MS)] * 40] * 3, plan).folder)
    assert [said for said in analysis.measures.not_measured if note in said] == [f"Ranks 0-2: {note}"]


def test_shortened_epochs_are_named_first(build):
    step = StepPlan(checkpoint=2 * MS, forward=3 * MS, backward=5 * MS)
    said = explain_run(build(step, {"spec": {"data_share": 0.02}, "notes": ["A tap failed."]})).measures.not_measured
    assert said[0].startswith("Whole epochs: with --data-share 2% what each has once weighs up to 50 times as much")
    assert "A tap failed." in said[1:]


@pytest.mark.parametrize(
    "run",
    [
        {"spec": {"data_share": None}},
        {"spec": {"data_share": 1.0}},
        {"spec": {"data_share": 0.02}, "notes": [f"rank 0: {_UNSEEN['data_share']}"]},
    ],
)
def test_whole_epochs_are_not_called_short(build, run):
    assert not any(
        "Whole epochs" in said for said in explain_run(build(StepPlan(forward=MS), run)).measures.not_measured
    )


def test_odd_values_in_run_json_are_not_believed(build):
    folder = build(StepPlan(forward=MS))
    run = json.loads(folder.run_json.read_text())
    folder.run_json.write_text(
        json.dumps(run | {"exit_code": "7", "duration_s": float("nan"), "notes": "none", "spec": 3, "status": None})
    )
    analysis = explain_run(folder)
    assert (analysis.exit_code, analysis.duration_s, analysis.script, analysis.status) == (None, None, "?", "running")
