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
