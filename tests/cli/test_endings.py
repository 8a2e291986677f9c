"""A run that did not write how it ended: lost where that can be told, silent where it can only be guessed."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.tables import Plan, StepPlan, build_run
from topout.cli.endings import Ending, ending_of
from topout.cli.live import Watcher
from topout.schema.launcher_process import describe_launcher
from topout.schema.run_folder import RunFolder, open_run

MS = 1_000_000
ELSEWHERE = {"pid": 812, "host": "n03", "boot_id": "of n03", "pid_namespace": "pid:[1]", "start_ticks": 1}
KILLED = "was killed, or could not write how the run ended; the figures are of what was recorded."


def gone():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return {**describe_launcher(), "pid": ended.pid}


def build(path, **run) -> RunFolder:
    steps = [StepPlan(forward=20 * MS, backward=40 * MS, optimizer=MS, samples=32)] * 30
    return build_run(path, [steps, steps], Plan(run={"status": "running", "exit_code": None, **run})).folder


def age(folder: RunFolder, seconds: float) -> None:
    for path in folder.path.rglob("*"):
        os.utime(path, (time.time() - seconds,) * 2)


def submitted(tmp_path, answer: str) -> dict[str, str]:
    """A job 17 whose scheduler answers so, as variables."""
    job = tmp_path / "jobs/2026-11-15-train-1"
    job.mkdir(parents=True)
    (job / "job.json").write_text('{"version": 1, "scheduler": "slurm"}')
    (job / "job_ids").write_text("17\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/squeue").write_text(f"#!/bin/sh\n{answer}\n")
    (tmp_path / "bin/squeue").chmod(0o755)
    return {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}


def test_watching_a_run_whose_launcher_was_killed_ends(run_topout, tmp_path):
    launcher = gone()
    folder = build(tmp_path / "run", launcher=launcher)
    watched = run_topout(["watch", folder.path], timeout=60)
    assert (watched.code, watched.stdout.split()[:3]) == (0, ["lost", "2", "ranks"])
    said = f"The launcher (process {launcher['pid']} on {launcher['host']}) {KILLED}"
    assert watched.stderr.splitlines() == [f"Note    {said}", f"Next    topout analyze {folder.path}"]
    shown = json.loads(run_topout(["watch", "--json", folder.path]).stdout)
    assert (shown["status"], shown["note"]) == ("lost", said)


def test_its_figures_are_said_to_be_of_what_was_recorded(run_topout, tmp_path):
    folder = build(tmp_path / "run", launcher=gone())
    analyzed = run_topout(["analyze", folder.path])
    assert analyzed.code == 0
    assert " · lost" in analyzed.stdout and "was killed" in analyzed.stdout
    document = json.loads(folder.analysis_json.read_text())
    assert (document["status"], KILLED in document["measures"]["not_measured"][0]) == ("lost", True)
    calibrated = run_topout(["calibrate", folder.path])
    assert (KILLED in calibrated.stderr, "still running" in calibrated.stderr) == (True, False)


@pytest.mark.parametrize("launcher", [ELSEWHERE, None])
def test_a_run_elsewhere_goes_on_while_it_writes_and_is_left_after_a_long_silence(launcher, run_topout, tmp_path):
    folder = build(tmp_path / "run", launcher=launcher)
    assert Watcher(folder.path).look().status == "running"
    age(folder, 720)
    # what others write beside it is no sign of life
    folder.report_html.write_text("")
    watched = run_topout(["watch", folder.path], timeout=60)
    assert (watched.code, watched.stdout.split()[0]) == (0, "silent")
    assert "Nothing was written into the run folder for 12 min." in watched.stderr
    assert "may have been killed" in watched.stderr
    assert ("on n03" in watched.stderr) == (launcher is not None)
    analyzed = json.loads(run_topout(["analyze", "--json", folder.path]).stdout)
    assert (analyzed["status"], "12 min" in analyzed["measures"]["not_measured"][0]) == ("running", True)


def test_a_launcher_that_is_here_may_be_silent_for_long(tmp_path):
    folder = build(tmp_path / "run", launcher=describe_launcher())
    age(folder, 7200)
    assert ending_of(*open_run(folder.path)) == Ending("running")


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [
        ("exit 0", "lost", "Job 17 has ended, and its run did not: it was killed"),
        ("echo PENDING", "lost", "Job 17 waits in line again, and its run did not: it was killed"),
        ("echo RUNNING", "running", None),
        ("echo 'no connection' >&2; exit 1", "silent", "it may have been killed"),
    ],
)
def test_the_scheduler_knows_what_became_of_a_silent_job(answer, status, said, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", submitted(tmp_path, answer)["PATH"])
    folder = build(tmp_path / "run", launcher=ELSEWHERE, job="/other/name/of/jobs/2026-11-15-train-1")
    assert ending_of(*open_run(folder.path)) == Ending("running")
    age(folder, 720)
    ending = ending_of(*open_run(folder.path))
    assert ending.status == status
    assert ending.note is None if said is None else said in (ending.note or "")


def test_a_scheduler_is_not_asked_at_every_look(monkeypatch, tmp_path):
    asked = tmp_path / "asked"
    monkeypatch.setenv("PATH", submitted(tmp_path, f"echo >> {asked}; echo RUNNING")["PATH"])
    folder = build(tmp_path / "run", launcher=ELSEWHERE, job="2026-11-15-train-1")
    age(folder, 720)
    watcher = Watcher(folder.path)
    assert [watcher.look().status for _ in range(3)] == ["running"] * 3
    assert len(asked.read_text().splitlines()) == 1


def test_a_launcher_that_is_killed_leaves_a_run_that_is_lost(run_topout, tmp_path):
    (tmp_path / "train.py").write_text("import time\nopen('begun', 'w').close()\ntime.sleep(600)\n")
    launcher = subprocess.Popen([sys.executable, "-m", "topout", "run", "-n", "1", "train.py"], cwd=tmp_path)
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "begun").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        (run,) = (tmp_path / "topout-runs").iterdir()
        assert open_run(run)[1]["status"] == "running"
        assert open_run(run)[1]["launcher"]["pid"] == launcher.pid
    finally:
        launcher.send_signal(signal.SIGKILL)
        launcher.wait()
    assert open_run(run)[1]["status"] == "lost"
    assert run_topout(["watch"], timeout=60).stdout.startswith("lost")
    assert [rank["status"] for rank in json.loads(run_topout(["watch", "--json"]).stdout)["ranks"]] == ["lost"]


def test_silence_says_nothing_of_a_run_that_records_nothing(tmp_path):
    for record, status in ((True, "silent"), (False, "running")):
        folder = build(tmp_path / str(record), launcher=ELSEWHERE, spec={"record": record})
        age(folder, 900)
        assert ending_of(folder, open_run(folder.path)[1]).status == status
