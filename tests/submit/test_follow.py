"""A job is followed from the queue to its runs, by what its scheduler says and by what lies in the folder."""

import json
import os
import threading
import time

import pytest

from tests.submit.test_job_script import program
from topout.schema.errors import TopoutError
from topout.submit.follow import await_run, state_of
from topout.submit.job_folder import JobFolder, find_job
from topout.submit.queues import QUEUES


@pytest.fixture
def answers(tmp_path, monkeypatch):
    """Lets a scheduler's command say something."""
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")

    def answer(scheduler, text, code=0, error=""):
        name = QUEUES[scheduler].state_command[0]
        words = " ".join(QUEUES[scheduler].state_command[1:]).format(job="17")
        check = f'[ "$*" = "{words}" ] || exit 9'
        program(
            tmp_path / f"bin/{name}",
            f"#!/bin/bash\n{check}\ncat << 'END'\n{text}\nEND\nprintf '%s' '{error}' >&2\nexit {code}\n",
        )

    return answer


def make_job(tmp_path, scheduler="slurm", job_id="17"):
    job = JobFolder(tmp_path / "topout-runs/jobs/2026-11-15-train-1")
    (job.path / "logs").mkdir(parents=True, exist_ok=True)
    job.write({"scheduler": scheduler})
    job.ids_file.write_text(f"{job_id}\n")
    return job


def make_run(tmp_path, name, job, started_at):
    folder = tmp_path / "topout-runs" / name
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"job": str(job), "started_at": started_at, "status": "running"}))
    return folder


SLURM, LSF, FLUX = "slurm", "lsf", "flux"
PBS = """Job id            Name             User              Time Use S Queue
----------------  ---------------- ----------------  -------- - -----
17.server         train            me                00:00:01 {} workq"""
SGE = """job-ID  prior   name       user         state submit/start at     queue                        slots ja-task-ID
---------------------------------------------------------------------------------------------------------------
     16 0.55500 other      me           r     11/15/2026 08:00:00 all.q@n1                           1
     17 0.55500 train      me           {}    11/15/2026 08:00:00                                    2"""


@pytest.mark.parametrize(
    ("scheduler", "text", "state"),
    [
        (SLURM, "PENDING", "pending"),
        (SLURM, "RUNNING", "running"),
        (SLURM, "COMPLETING", "running"),
        (SLURM, "COMPLETED", "ended"),
        (SLURM, "TIMEOUT", "ended"),
        (LSF, "PEND", "pending"),
        (LSF, "RUN", "running"),
        (LSF, "EXIT", "ended"),
        ("pbs", PBS.format("Q"), "pending"),
        ("pbs", PBS.format("R"), "running"),
        ("pbs", PBS.format("F"), "ended"),
        ("sge", SGE.format("qw "), "pending"),
        ("sge", SGE.format("r  "), "running"),
        ("sge", SGE.rpartition("\n")[0], "ended"),
        (FLUX, "SCHED", "pending"),
        (FLUX, "RUN", "running"),
        (FLUX, "INACTIVE", "ended"),
    ],
)
def test_each_scheduler_is_asked_in_its_own_words(tmp_path, answers, scheduler, text, state):
    answers(scheduler, text)
    assert state_of(make_job(tmp_path, scheduler)) == state


@pytest.mark.parametrize(
    ("scheduler", "error", "state"),
    [
        (SLURM, "slurm_load_jobs error: Invalid job id specified", "ended"),
        (SLURM, "slurm_load_jobs error: Unable to contact slurm controller (connect failure)", "unknown"),
        ("pbs", "qstat: Unknown Job Id 17.server", "ended"),
        ("pbs", "qstat: 17.server Job has finished, use -x or -H to obtain historical job information", "ended"),
        (LSF, "Job <17> is not found", "ended"),
        ("sge", "error: commlib error: got select error (Connection refused)", "unknown"),
    ],
)
def test_a_forgotten_job_has_ended_and_a_silent_scheduler_is_unknown(tmp_path, answers, scheduler, error, state):
    answers(scheduler, "", 1, error)
    assert state_of(make_job(tmp_path, scheduler)) == state


def test_without_the_schedulers_command_nothing_is_known(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert state_of(make_job(tmp_path)) == "unknown"
    assert state_of(make_job(tmp_path, "from-outside")) == "unknown"


def test_a_job_is_found_by_folder_and_by_number(tmp_path):
    job = make_job(tmp_path)
    root = tmp_path / "topout-runs"
    assert find_job(job.path, root) == job
    assert find_job("17", root) == job
    assert find_job("18", root) is None
    assert find_job(root / "2026-11-15-train-1", root) is None


def test_a_job_that_submitted_itself_again_is_known_by_both_numbers(tmp_path):
    job = make_job(tmp_path)
    with open(job.ids_file, "a") as file:
        file.write("23\n")
    assert job.job_id == "23"
    assert find_job("17", tmp_path / "topout-runs") == find_job("23", tmp_path / "topout-runs") == job


def test_the_runs_of_a_job_are_its_own_newest_first(tmp_path):
    job = make_job(tmp_path)
    first = make_run(tmp_path, "a", job.path, "2026-11-15T08:00:00.000+01:00")
    # under another name of the same folder, as another machine may see it
    second = make_run(tmp_path, "b", "/elsewhere/jobs/2026-11-15-train-1", "2026-11-15T09:00:00.000+01:00")
    make_run(tmp_path, "c", "/elsewhere/jobs/2026-11-15-train-2", "2026-11-15T10:00:00.000+01:00")
    (tmp_path / "topout-runs/d").mkdir()
    (tmp_path / "topout-runs/d/run.json").write_text("{")
    assert job.runs() == [second, first]


def test_a_pending_job_is_waited_for_until_its_run_begins(tmp_path, answers):
    answers(SLURM, "PENDING")
    job, said = make_job(tmp_path), []

    def begin():
        while "job 17 is pending" not in said:
            time.sleep(0.01)
        answers(SLURM, "RUNNING")
        while len(said) < 2:
            time.sleep(0.01)
        make_run(tmp_path, "a", job.path, "2026")

    thread = threading.Thread(target=begin)
    thread.start()
    found = await_run(job, said.append, every_s=0.05)
    thread.join()
    assert found == tmp_path / "topout-runs/a"
    assert said == ["job 17 is pending", "job 17 is running; its run folder is not there yet"]


def test_a_job_that_ends_without_a_run_is_told_with_its_last_words(tmp_path, answers):
    answers(SLURM, "FAILED")
    job = make_job(tmp_path)
    job.output.write_text("line 1\nbash: topout: command not found\n")
    with pytest.raises(TopoutError) as caught:
        await_run(job, print, every_s=0.01)
    assert "topout: command not found" in caught.value.why


def test_the_run_after_a_requeue_is_the_next_one(tmp_path, answers):
    answers(SLURM, "COMPLETED")
    job = make_job(tmp_path)
    first = make_run(tmp_path, "a", job.path, "2026-11-15T08")
    assert await_run(job, print) == first
    assert await_run(job, print, after=first, every_s=0.01) is None
    second = make_run(tmp_path, "b", job.path, "2026-11-15T09")
    assert await_run(job, print, after=first) == second
