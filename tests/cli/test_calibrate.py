"""`topout calibrate` as typed: what is said of a run that has not ended, and which doctor counts."""

import json
import os
from pathlib import Path

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


def test_a_run_that_was_chosen_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    steps = [StepPlan(forward=20 * MS, backward=40 * MS, optimizer=MS, samples=32)] * 30
    build_run(tmp_path / "topout-runs" / "mine", [steps, steps], Plan(run={"status": "finished"}))
    assert call(["calibrate", "--out", "."]) == 0
    assert "Run     topout-runs/mine\n" in capsys.readouterr().err


def diagnosed(at, host, num_cores):
    """What doctor kept of a host, `at` so many seconds."""
    kept = Path("topout-runs/doctor", host, "doctor.json")
    kept.parent.mkdir(parents=True)
    kept.write_text(json.dumps({"links": [], "hosts": [{"host": host, "limits": {"num_cores": num_cores}}]}))
    os.utime(kept, (at, at))
    return kept


def test_a_doctor_of_other_hosts_is_left_out_and_said(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    login = diagnosed(2, "login", 2)
    assert written(tmp_path, monkeypatch, "one.json") == 0
    found = json.loads((tmp_path / "one.json").read_text())
    said = "The newest topout doctor examined login, which took no part in this run; it is left out."
    assert found["system"]["cores"] == 0
    assert [said in note and f"--doctor {login}" in note for note in found["notes"]].count(True) == 1
    # an older one of a host that ran it, which doctor told from another of its name
    diagnosed(1, "n01#1", 64)
    assert call(["calibrate", "run", "--out", "two.json"]) == 0
    found = json.loads((tmp_path / "two.json").read_text())
    assert found["system"]["cores"] == 64
    assert not any("login" in note for note in found["notes"])
    assert call(["calibrate", "run", "--out", "three.json", "--doctor", str(login)]) == 0
    assert json.loads((tmp_path / "three.json").read_text())["system"]["cores"] == 2


def test_an_older_doctor_that_cannot_be_read_ends_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    diagnosed(2000, "login", 2)
    diagnosed(1000, "older", 64).write_text("{")
    os.utime("topout-runs/doctor/older/doctor.json", (1000, 1000))
    assert written(tmp_path, monkeypatch, "mine.json") == 0
    assert "The newest topout doctor examined login" in capsys.readouterr().err


def test_a_doctor_that_names_no_hosts_is_believed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kept = diagnosed(1, "old", 8)
    kept.write_text(json.dumps({"links": [], "hosts": [{"limits": {"num_cores": 8}}]}))
    assert written(tmp_path, monkeypatch, "one.json") == 0
    assert json.loads((tmp_path / "one.json").read_text())["system"]["cores"] == 8


LINK = {"link_class": "within a host", "operation": "all-reduce", "transport": "gloo", "num_ranks": 2, "alpha_s": 1e-4,
        "beta_bytes_per_s": 1e9, "largest_bytes_per_s": 9e8}  # fmt: skip
SAMPLED = {**LINK, "samples": [{"num_bytes": 4096, "times_s": [1e-4]}, {"num_bytes": 1 << 20, "times_s": [1.1e-3]}]}


@pytest.mark.parametrize(
    ("links", "host", "said"),
    [
        (["x"], {}, "$.links[0]"),
        ([{key: value for key, value in LINK.items() if key != "num_ranks"}], {}, "num_ranks"),
        ([{**LINK, "cpu_alpha_s": "x"}], {}, "$.links[0].cpu_alpha_s"),
        ([LINK], 0, "$.hosts[0]"),
        ([LINK], {"links": 0}, "$.hosts[0].links"),
        ([LINK], {"links": [{**SAMPLED, "samples": [{"num_bytes": 4096, "times_s": [0]}]}]}, "times_s[0]"),
        ([LINK], {"limits": {"num_cores": "many"}}, "$.hosts[0].limits.num_cores"),
        ([LINK], {"places": [{"purpose": "data", "read_bytes_per_s": "quick"}]}, "$.hosts[0].places[0]"),
    ],
)
def test_a_diagnosis_of_another_shape_is_an_error_that_names_the_place(
    tmp_path, monkeypatch, capsys, links, host, said
):
    monkeypatch.chdir(tmp_path)
    kept = diagnosed(1, "n01", 8)
    kept.write_text(json.dumps({"links": [LINK], "hosts": [{"links": [SAMPLED]}]}))
    assert written(tmp_path, monkeypatch, "one.json") == 0
    capsys.readouterr()
    kept.write_text(json.dumps({"links": links, "hosts": [host]}))
    for chosen in ([], ["--doctor", str(kept)]):
        assert call(["calibrate", "run", "--out", "one.json", *chosen]) == 2
        error = capsys.readouterr().err
        assert f"{kept} is no diagnosis of topout doctor." in error
        assert said in error
