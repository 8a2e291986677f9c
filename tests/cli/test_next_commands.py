"""The commands that topout names can be pasted into a shell, whatever stands in a path."""

import shlex
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.packs.packs import file_folder
from tests.report.analyses import NOTHING_SEEN
from tests.tables import Plan, StepPlan, build_run
from topout.cli import finish, scale, scale_jobs
from topout.cli.main import call
from topout.launch.target import with_target
from topout.report.json_report import read
from topout.report.text import next_command
from topout.schema.errors import TopoutError
from topout.schema.spec import RunSpec
from topout.study.scaling_runs import Account, Point

MS = 1_000_000
POINT = Point(1, None)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Of runs, with a blank in the name of each."""
    monkeypatch.chdir(tmp_path)
    steps = [StepPlan(forward=20 * MS, backward=40 * MS, optimizer=MS, samples=32)] * 30
    for name in ("run 1", "run 2"):
        build_run(tmp_path / name, [steps, steps], Plan(run={"status": "finished"}))
    return tmp_path


def last_words(text):
    """Of the last line, as a shell reads them."""
    return shlex.split(text.splitlines()[-1].removeprefix("Next"))


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        (["compare", "run 1", "run 2"], ["topout", "analyze", "run 2"]),
        (["watch", "--once", "run 1"], ["topout", "analyze", "run 1"]),
        (
            ["calibrate", "run 1", "--out", "my job.json"],
            ["topout", "simulate", "my job.json", "--system", "my job.json", "--nodes", "1..16"],
        ),
    ],
)
def test_of_a_run(folder, capsys, typed, named):
    assert call(typed) == 0
    assert last_words(capsys.readouterr().err) == named


def test_of_a_run_that_is_not_explained(folder, run_topout):
    (folder / "train.py").write_text("print('trained')")
    done = run_topout(["run", "-n", "1", "--no-record", "--runs", "my runs", "train.py"])
    [made] = (folder / "my runs").iterdir()
    assert last_words(done.stderr) == ["topout", "analyze", f"my runs/{made.name}"]


def test_of_a_run_that_cannot_be_explained(folder, monkeypatch):
    def fails(folder):
        raise ValueError("odd")

    monkeypatch.setattr(finish, "_finish", fails)
    ended = finish.finish(finish.RunFolder(folder / "run 1"))
    assert last_words(ended.text) == ["topout", "analyze", "run 1"]


def test_of_an_analysis_that_is_missing(folder):
    with pytest.raises(TopoutError) as caught:
        read(folder / "run 1/analysis.json")
    assert shlex.split(caught.value.do)[:3] == ["topout", "analyze", str(folder / "run 1")]


@pytest.mark.parametrize("script", ["/home/me/my train.py", "package.train", "?"])
def test_of_a_run_without_a_verdict_can_be_run_wherever_it_is_read(script, capsys):
    topout, *words = shlex.split(next_command(replace(NOTHING_SEEN, script=script)))
    assert (topout, call(words)) == ("topout", 0)
    assert "load-imbalance" in capsys.readouterr().out


def test_of_a_folder_that_is_no_script(folder):
    (folder / "my job").mkdir()
    (folder / "my job/train it.py").write_text("")
    with pytest.raises(TopoutError) as caught:
        with_target(RunSpec(script="my job"))
    assert shlex.split(caught.value.do) == ["topout", "run", "my job/train it.py"]


def test_of_packs(folder, capsys):
    file_folder(folder / "my files", 3, 100)
    assert call(["data", "info", "my files"]) == 0
    assert last_words(capsys.readouterr().err) == ["topout", "pack", "my files", "DST"]
    assert call(["pack", "my files", "a pack"]) == 0
    assert last_words(capsys.readouterr().err) == ["topout", "data", "info", "a pack"]
    (folder / "my files/0001.bin").unlink()
    assert call(["data", "check", "a pack", "--source", "my files"]) == 1
    assert last_words(capsys.readouterr().err) == ["topout", "pack", "my files", "a pack", "--force"]
    (folder / "a pack/shard-00000.bin").unlink()
    assert call(["data", "check", "a pack"]) == 1
    assert last_words(capsys.readouterr().err) == ["topout", "data", "check", "a pack", "--repair"]


def test_of_a_study_that_was_interrupted(folder, monkeypatch, capsys):
    ended = iter([SimpleNamespace(folder="run 1")])

    def run_point(*_):
        try:
            return next(ended)
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(scale, "run_point", run_point)
    place = scale._Place(["train.py"], [], folder, None, is_elsewhere=True)
    with pytest.raises(KeyboardInterrupt):
        place.run([POINT], 2, Account(print))
    assert last_words(capsys.readouterr().out) == ["topout", "scale", "run 1"]


def test_of_jobs_that_stay_in_line(folder, monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    job = SimpleNamespace(path=folder / "my runs/jobs/x", job_id="17")
    monkeypatch.setattr(scale_jobs, "submit", lambda submission: (job, None))
    monkeypatch.setattr(scale_jobs, "_await", interrupted)
    with pytest.raises(KeyboardInterrupt):
        scale_jobs.run_jobs([(POINT, None)], 1, Account(print))
    assert last_words(capsys.readouterr().out) == ["topout", "scale", "my runs/jobs/x"]
