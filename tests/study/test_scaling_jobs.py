"""One job of the scheduler for each point: what it asks for, who is waited for, and what is left when one fails."""

import pytest

from tests.study.test_scaling import recorded
from topout.cli import scale_jobs
from topout.cli.main import call
from topout.schema.errors import TopoutError
from topout.submit.job_folder import JobFolder


@pytest.fixture
def site(tmp_path, monkeypatch):
    (tmp_path / "site.toml").write_text('[site]\nscheduler = "slurm"\ntime = "10m"\ngpus_per_node = 4\n')
    (tmp_path / "train.py").write_text("")
    monkeypatch.setenv("TOPOUT_SITE", str(tmp_path / "site.toml"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def dry(capsys, *words):
    assert call(["scale", "--submit", "--dry-run", "--mode", "strong", "--batch", "8", *words, "train.py", "a b"]) == 0
    return capsys.readouterr().out


def test_a_job_asks_for_the_nodes_of_its_point_and_runs_all_repeats(site, capsys):
    said = dry(capsys, "--ranks", "2,8", "--repeats", "5", "--steps", "50")
    small, large = said.split("#!/bin/bash")[1:]
    assert "--nodes=1" in small and "--ntasks-per-node=2" in small
    assert "--nodes=2" in large and "--ntasks-per-node=4" in large
    # 8 a rank on two ranks are 16 in all, 2 on each of eight
    assert "scale --runs-only --ranks 2 --repeats 5 --batch 8 --steps 50" in small
    assert "scale --runs-only --ranks 8 --repeats 5 --batch 2 --steps 50" in large
    assert "train.py 'a b'" in large
    assert "--no-requeue" in large
    assert "scontrol requeue" not in large
    assert not (site / "topout-runs").exists()


def test_the_scripts_own_option_for_the_batch_reaches_the_job(site, capsys):
    said = dry(capsys, "--ranks", "1,4", "--batch-arg", "--bs", "--batch-of", "all")
    assert "--batch 2 --batch-arg=--bs --batch-of all" in said


def test_how_many_ranks_go_on_a_node_must_be_known(site, capsys):
    (site / "site.toml").write_text('[site]\nscheduler = "slurm"\ntime = "10m"\n')
    assert call(["scale", "--submit", "--dry-run", "--ranks", "1,2", "train.py"]) == 2
    assert "How many ranks go on a node?" in capsys.readouterr().err


def test_in_a_container_a_study_is_not_submitted(site, capsys):
    with open(site / "site.toml", "a") as file:
        file.write('container = "image.sif"\n')
    assert call(["scale", "--submit", "--dry-run", "--ranks", "1,2", "train.py"]) == 2
    assert "into a container" in capsys.readouterr().err


class Queue:
    """A scheduler that takes jobs of fewer than `limit` ranks; each makes its runs when it is first asked about."""

    def __init__(self, monkeypatch, root, *, limit=100, makes_runs=True):
        self.root, self.limit, self.makes_runs, self.asked = root, limit, makes_runs, []
        monkeypatch.setattr(scale_jobs, "submit", self.submit)
        monkeypatch.setattr(scale_jobs, "state_of", self.state)

    def submit(self, submission):
        ranks = submission.nodes * submission.ranks_per_node
        if ranks >= self.limit:
            raise TopoutError("sbatch did not take the job.", why="too many nodes", do="fewer")
        job = JobFolder(self.root / "jobs" / f"x-scale-{ranks}-1")
        job.path.mkdir(parents=True)
        job.ids_file.write_text(f"{ranks}\n")
        return job, None

    def state(self, job):
        ranks = int(job.job_id)
        self.asked.append(ranks)
        if self.asked.count(ranks) == 1:
            return "running"
        if self.makes_runs and not job.runs():
            recorded(self.root / f"run-{ranks}", ranks, job=str(job.path))
        return "ended"


@pytest.fixture
def submitted(site, capsys, monkeypatch):
    def run(queue):
        monkeypatch.setattr(scale_jobs, "EVERY_S", 0.01)
        code = call(["scale", "--submit", "--ranks", "1,2,4", "--repeats", "1", "--runs", str(queue.root), "train.py"])
        return code, capsys.readouterr()

    return run


def test_jobs_are_waited_for_and_studied(site, monkeypatch, submitted):
    code, said = submitted(Queue(monkeypatch, site / "runs"))
    assert code == 0
    assert "Waiting for 1 rank (running), 2 ranks (running), 4 ranks (running)" in said.err
    assert "weak scaling" in said.out


def test_a_point_that_the_scheduler_refuses_is_left_out(site, monkeypatch, submitted):
    code, said = submitted(Queue(monkeypatch, site / "runs", limit=4))
    assert code == 0
    assert "4 ranks: left out. sbatch did not take the job. too many nodes" in said.err


def test_jobs_that_made_no_runs_are_named_with_their_last_words(site, monkeypatch, submitted):
    code, said = submitted(Queue(monkeypatch, site / "runs", makes_runs=False))
    assert code == 4
    left_out = "4 ranks: job 4 made no run and is left out: it left no output"
    assert f"Note    {left_out}\n" in said.err and f"; {left_out}.\n" in said.err


def test_an_interruption_leaves_the_jobs_and_says_how_to_go_on(site, monkeypatch, submitted):
    queue = Queue(monkeypatch, site / "runs")

    def interrupted(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(scale_jobs.time, "sleep", interrupted)
    code, said = submitted(queue)
    assert code == 130
    assert "topout scale runs/jobs/x-scale-1-1 runs/jobs/x-scale-2-1 runs/jobs/x-scale-4-1" in said.err
