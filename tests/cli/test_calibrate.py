"""`topout calibrate` as typed: what is said of a run that has not ended."""

import json

import pytest

from tests.tables import Plan, StepPlan, build_run
from topout.cli.main import call

MS = 1_000_000
NOTE = "The job is still running; the figures are of what is recorded so far."


@pytest.mark.parametrize(("status", "is_said"), [("running", True), ("finished", False), ("failed", False)])
def test_a_run_that_goes_on_is_said_to(tmp_path, monkeypatch, capsys, status, is_said):
    monkeypatch.chdir(tmp_path)
    steps = [StepPlan(forward=20 * MS, backward=40 * MS, optimizer=MS, samples=32)] * 30
    folder = build_run(tmp_path / "run", [steps, steps], Plan(run={"status": status})).folder
    assert call(["calibrate", str(folder.path)]) == 0
    assert (f"Note    {NOTE}" in capsys.readouterr().err) == is_said
    assert (NOTE in json.loads((folder.path / "calibration.json").read_text())["notes"]) == is_said


def written(tmp_path, monkeypatch, name):
    """Exit code of a calibration that is to be written there."""
    monkeypatch.chdir(tmp_path)
    steps = [StepPlan(forward=20 * MS, backward=40 * MS, optimizer=MS, samples=32)] * 30
    folder = build_run(tmp_path / "run", [steps, steps], Plan(run={"status": "finished"})).folder
    return call(["calibrate", str(folder.path), "--out", name])


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("train.py", "import torch\n", "Its name does not end in .json."),
        ("my-job.toml", "title = 'a'\n", "Its name does not end in .json."),
        ("notes", "mine\n", "Its name does not end in .json."),
        ("absent.txt", None, "Its name does not end in .json."),
        ("data.json", '{"job": 1}', "It is no calibration, and would be lost."),
        ("list.json", "[]", "It is no calibration, and would be lost."),
        ("broken.json", "{", "It is no calibration, and would be lost."),
    ],
)
def test_a_file_of_somebody_elses_is_not_replaced(tmp_path, monkeypatch, capsys, name, content, said):
    if content is not None:
        (tmp_path / name).write_text(content)
    assert written(tmp_path, monkeypatch, name) == 2
    assert said in capsys.readouterr().err
    assert (tmp_path / name).read_text() == content if content is not None else not (tmp_path / name).exists()


def test_a_calibration_is_replaced_by_another(tmp_path, monkeypatch):
    assert written(tmp_path, monkeypatch, "mine.json") == 0
    first = (tmp_path / "mine.json").read_text()
    assert call(["calibrate", "run", "--out", "mine.json"]) == 0
    assert (tmp_path / "mine.json").read_text() == first


def test_a_folder_gets_a_file_of_the_usual_name(tmp_path, monkeypatch):
    assert written(tmp_path, monkeypatch, ".") == 0
    assert json.loads((tmp_path / "calibration.json").read_text())["version"] >= 1
