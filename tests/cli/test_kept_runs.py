"""Verbs that are not told which run to read look where runs from this folder are made."""

import json
import os

import pytest

from tests.tables import Plan, StepPlan, build_run
from topout.cli.diagnoses import read_diagnosis
from topout.cli.kept_runs import newest_run, runs_root
from topout.cli.main import call
from topout.schema.errors import TopoutError

MS = 1_000_000


def build(path, script="train.py"):
    steps = [StepPlan(forward=20 * MS, backward=40 * MS, optimizer=MS, samples=32)] * 30
    return build_run(path, [steps, steps], Plan(run={"status": "finished", "spec": {"script": script}})).folder


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A folder whose topout.toml keeps runs in another, and that has an old run of its own."""
    home, scratch = tmp_path / "home", tmp_path / "scratch"
    build(home / "topout-runs" / "old-1")
    (home / "topout.toml").write_text(f'[run]\nruns = "{scratch}"\n')
    monkeypatch.chdir(home)
    return scratch


@pytest.mark.parametrize("words", ["analyze --no-html", "calibrate", "watch --once"])
def test_the_newest_run_is_that_of_the_folder_that_topout_toml_names(words, elsewhere, capsys):
    build(elsewhere / "new-1")
    assert call(words.split()) == 0
    told = capsys.readouterr()
    assert "new-1" in told.out + told.err and "old-1" not in told.out + told.err


@pytest.mark.parametrize("verb", ["analyze", "calibrate", "watch"])
def test_where_there_is_none_the_folder_is_named(verb, elsewhere, capsys):
    assert call([verb]) == 2
    assert f"{elsewhere}/ holds none" in capsys.readouterr().err


def test_without_topout_toml_runs_are_in_topout_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert str(runs_root()) == "topout-runs"


def test_a_topout_toml_beside_a_script_elsewhere_is_said_not_to_be_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TopoutError) as caught:
        newest_run()
    assert caught.value.why == (
        "topout-runs/ holds none, and a topout.toml beside a script in another folder is not read here"
    )
    # the file of this folder is the one that `topout run` takes, wherever the script is
    (tmp_path / "topout.toml").write_text('[run]\nruns = "kept"\n')
    with pytest.raises(TopoutError) as caught:
        newest_run()
    assert caught.value.why == "kept/ holds none"


def test_a_run_that_goes_away_meanwhile_is_passed_over(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    build(tmp_path / "topout-runs" / "whole-1")
    (tmp_path / "topout-runs" / "half-1").mkdir()
    assert newest_run().name == "whole-1"
    (tmp_path / "topout-runs" / "whole-1" / "run.json").unlink()
    with pytest.raises(TopoutError, match="There is no run to read"):
        newest_run()


def test_a_diagnosis_is_found_beside_the_runs_and_where_doctor_keeps_it_unasked(elsewhere):
    for place, at in ((elsewhere, 1), (elsewhere.parent / "home" / "topout-runs", 2)):
        kept = place / "doctor" / "one" / "doctor.json"
        kept.parent.mkdir(parents=True)
        kept.write_text(json.dumps({"links": [], "at": at}))
        os.utime(kept, (at, at))
        assert (read_diagnosis(None) or {})["at"] == at
