"""`topout submit` on a real Grid Engine of two nodes: warned by the clock, in line again by its exit code."""

import sys

import pytest

from tests.lab.cluster import Nodes
from tests.lab.sge_cluster import GridEngine
from tests.launch.jobs import wait_for
from tests.submit.test_on_slurm import TRAINING, jobs_of, runs

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    with Nodes(2) as nodes, GridEngine(nodes, tmp_path_factory.mktemp("sge")) as engine:
        yield engine


@pytest.fixture
def project(tmp_path):
    (tmp_path / "train.py").write_text(TRAINING)
    (tmp_path / "eval.py").write_text("import sys; print('evaluated', sys.argv[1:])")
    return tmp_path


def submit(engine, project, *words, **settings):
    """(number of the job, its folder), submitted on the login node."""
    lines = "".join(f"{key} = {value}\n" for key, value in settings.items())
    # the queue of the laboratory gives jobs no environment
    slots = [] if "1" in map(str, words) else ["#$ -pe lab 4"]
    (project / "site.toml").write_text(f'[site]\nscheduler = "sge"\nlines = {["#$ -V", *slots]}\n{lines}')
    done = engine.run(
        [sys.executable, "-P", "-m", "topout", "submit", "--no-report", *words, "train.py", "a b"],
        cwd=project,
        env={"TOPOUT_SITE": str(project / "site.toml"), "XDG_CONFIG_HOME": str(project)},
    )
    assert done.returncode == 0, done.stderr
    job_id = done.stdout.strip()
    return job_id, next(job for job in jobs_of(project) if job.job_id == job_id)


def state(engine, job_id):
    program = f"from topout.submit.follow import state_of_id; print(state_of_id('sge', '{job_id}'))"
    return engine.run([sys.executable, "-c", program], check=True).stdout.strip()


def test_a_job_is_warned_by_the_clock_requeues_resumes_and_is_evaluated(engine, project):
    job_id, job = submit(engine, project, "--nodes", "2", "--time", "10m", "--eval-job", "eval.py 'x y'", warn_s=590)
    assert wait_for(lambda: state(engine, job_id) == "running", 60)
    assert wait_for(lambda: job.eval_output.exists() and "evaluated" in job.eval_output.read_text(), 230), (
        job.output.read_text()
    )
    steps = [(project / f"saved-{rank}").read_text() for rank in range(2)]
    assert steps[0] == steps[1], "all ranks stop at the same step"
    assert f"rank 0 of 2 from step {steps[0]} ['a b']\nfinished\n" in job.output.read_text()
    assert runs(project) == [75, 0]
    assert "evaluated ['x y']" in job.eval_output.read_text()
    assert len(job.job_ids()) == 2
    assert wait_for(lambda: state(engine, job.job_id) == "ended", 30)


def test_a_job_of_one_node_keeps_its_number(engine, project):
    job_id, job = submit(engine, project, "--nodes", "1", "--time", "10m", "--eval-job", "eval.py 'x y'", warn_s=592)
    assert wait_for(lambda: job.eval_output.exists() and "evaluated" in job.eval_output.read_text(), 230), (
        job.output.read_text()
    )
    assert job.job_ids() == [job_id]
    assert runs(project) == [75, 0]


@pytest.mark.parametrize("num_nodes", [1, 2])
def test_a_deleted_job_does_not_come_back(engine, project, num_nodes):
    job_id, job = submit(engine, project, "--nodes", num_nodes, "--time", "10m")
    begun = [project / f"began-{rank}" for rank in range(num_nodes)]
    assert wait_for(lambda: all(path.exists() for path in begun), 90), job.output.read_text()
    engine.run(["qdel", job_id], check=True)
    assert wait_for(lambda: state(engine, job_id) == "ended", 60)
    assert job.job_ids() == [job_id]
