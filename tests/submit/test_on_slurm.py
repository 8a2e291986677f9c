"""`topout submit` on a real Slurm of two nodes: from the login node through queue, warning and requeue to the end."""

import json
import sys

import pytest

from tests.launch.jobs import wait_for
from tests.submit.test_job_script import program
from topout.submit.job_folder import JobFolder

pytestmark = pytest.mark.lab

TRAINING = """
import os, socket, sys, time
from topout.api.preemption import should_stop

rank = os.environ["RANK"]
saved = f"saved-{rank}"
first = int(open(saved).read()) if os.path.exists(saved) else 0
print("rank", rank, "of", os.environ["WORLD_SIZE"], "from step", first, sys.argv[1:], flush=True)
for name in (f"began-{rank}", f"began-{rank}-{socket.gethostname()}"):
    open(name, "a").close()
for step in range(first, first + 5 if first else 10**6):
    time.sleep(0.02)
    if should_stop():
        with open(saved, "w") as file:
            file.write(str(step + 1))
        break
else:
    print("finished", flush=True)
"""


@pytest.fixture
def project(tmp_path):
    (tmp_path / "train.py").write_text(TRAINING)
    (tmp_path / "eval.py").write_text("import sys; print('evaluated', sys.argv[1:])")
    (tmp_path / "site.toml").write_text('[site]\nscheduler = "slurm"\ntime = "10m"\n')
    return tmp_path


def submit(slurm, project, *words):
    """(number of the job, its folder), submitted on the login node."""
    done = slurm.run(
        [sys.executable, "-P", "-m", "topout", "submit", *words],
        cwd=project,
        env={"TOPOUT_SITE": str(project / "site.toml"), "XDG_CONFIG_HOME": str(project)},
    )
    assert done.returncode == 0, done.stderr
    job_id = int(done.stdout)
    return job_id, next(job for job in jobs_of(project) if job.job_id == str(job_id))


def jobs_of(project):
    """All that were submitted from there."""
    return [JobFolder(path) for path in sorted((project / "topout-runs/jobs").iterdir())]


def runs(project):
    """Exit codes of all runs of train.py, in the order of their numbers."""
    folders = sorted((project / "topout-runs").glob("*-train-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    return [json.loads((folder / "run.json").read_text())["exit_code"] for folder in folders]


def await_both_ranks(project, job):
    begun = [project / "began-0-n1", project / "began-1-n2"]
    assert wait_for(lambda: all(path.exists() for path in begun), 90), job.output.read_text()


def test_a_job_is_warned_stops_requeues_resumes_and_is_evaluated(slurm, project):
    job_id, job = submit(
        slurm, project, "--nodes", "2", "--no-report", "--eval-job", "eval.py 'x y'", "train.py", "a b"
    )
    await_both_ranks(project, job)
    slurm.cancel(job_id, "--signal=USR1", "--batch")
    slurm.wait(job_id + 1, timeout=180)
    assert slurm.job(job_id)["JobState"] == "COMPLETED", job.output.read_text()
    assert slurm.job(job_id)["Restarts"] == "1"
    steps = [(project / f"saved-{rank}").read_text() for rank in range(2)]
    assert steps[0] == steps[1], "all ranks stop at the same step"
    said = job.output.read_text()
    assert f"rank 0 of 2 from step {steps[0]} ['a b']\nfinished\n" in said
    assert runs(project) == [75, 0]
    assert [run.name.rpartition("-")[2] for run in job.runs()] == ["2", "1"]
    assert "evaluated ['x y']" in job.eval_output.read_text()


def test_a_preempted_job_makes_room_and_comes_back(slurm, project):
    job_id, job = submit(slurm, project, "--nodes", "2", "--no-report", "train.py")
    await_both_ranks(project, job)
    urgent = slurm.sbatch("sleep 1", "--partition=urgent", "--nodes=2", "--exclusive")
    slurm.wait(urgent, timeout=120)
    slurm.wait(job_id, timeout=120)
    assert slurm.job(job_id)["JobState"] == "COMPLETED", job.output.read_text()
    assert runs(project) == [75, 0]


def test_in_a_container_every_rank_is_a_task_and_hears_the_warning(slurm, project):
    # an image with this machine's Python, and without any of Slurm's commands
    program(project / "image/python3", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    entered = f'[ "$1 $2" = "exec {project}/image.sif" ] && shift 2 && PATH={project}/image exec "$@"'
    program(project / "bin/apptainer", f"#!/bin/bash\n{entered}\n")
    with open(project / "site.toml", "a") as file:
        file.write(f'before = ["export PATH={project}/bin:$PATH"]\n')
    job_id, job = submit(slurm, project, "--nodes", "2", "--no-report", "--container", "image.sif", "train.py", "a b")
    await_both_ranks(project, job)
    slurm.cancel(job_id, "--signal=USR1", "--batch")
    slurm.wait(job_id, timeout=120)
    said = job.output.read_text()
    assert slurm.job(job_id)["JobState"] == "COMPLETED", said
    steps = [(project / f"saved-{rank}").read_text() for rank in range(2)]
    assert steps[0] == steps[1], "all ranks stop at the same step"
    assert f"rank 0 of 2 from step {steps[0]} ['a b']\nfinished\n" in said
    assert runs(project) == [75, 0]


def test_a_deleted_job_does_not_come_back(slurm, project):
    job_id, job = submit(slurm, project, "--nodes", "2", "--no-report", "train.py")
    await_both_ranks(project, job)
    slurm.cancel(job_id)
    assert slurm.wait(job_id)["JobState"] == "CANCELLED"
    assert slurm.job(job_id)["Restarts"] == "0"


def test_a_failed_training_is_not_evaluated(slurm, project):
    (project / "train.py").write_text("raise ValueError('no such data')")
    job_id, job = submit(slurm, project, "--no-report", "--eval-job", "eval.py", "train.py")
    assert slurm.wait(job_id)["JobState"] == "FAILED"
    assert job.output.read_text().rstrip().endswith("ValueError: no such data")
    assert slurm.wait(job_id + 1)["JobState"] == "CANCELLED"
    assert not job.eval_output.exists()


def test_a_job_is_followed_through_the_queue(slurm, project):
    blocker = slurm.sbatch("sleep 300", "--nodes=2", "--exclusive")
    slurm.wait(blocker, states={"RUNNING"})
    job_id, _ = submit(slurm, project, "--nodes", "2", "--no-report", "train.py")

    def state():
        # asked where the scheduler can be reached
        program = f"from topout.submit.follow import state_of_id; print(state_of_id('slurm', '{job_id}'))"
        return slurm.run([sys.executable, "-c", program], check=True).stdout.strip()

    assert state() == "pending"
    slurm.cancel(blocker)
    assert wait_for(lambda: state() == "running", 60)
    slurm.cancel(job_id)
    assert wait_for(lambda: state() == "ended", 60)


def test_what_slurm_refuses_is_said_in_its_words(slurm, project):
    done = slurm.run(
        [sys.executable, "-P", "-m", "topout", "submit", "--partition", "no-such", "train.py"],
        cwd=project,
        env={"TOPOUT_SITE": str(project / "site.toml")},
    )
    assert done.returncode == 3
    assert "invalid partition specified: no-such" in done.stderr
    assert jobs_of(project) == []
