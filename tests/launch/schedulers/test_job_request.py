"""A job is asked for in each scheduler's own words, and what it has no word for is refused."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from topout.launch.allocation import Allocation
from topout.launch.job_request import JobRequest, hours_minutes_seconds
from topout.launch.schedulers import flux, hydra, local, lsf, openmpi, pbs, sge, slurm
from topout.schema.errors import TopoutError

FULL = {
    "name": "train",
    "nodes": 4,
    "tasks_per_node": 2,
    "gpus_per_node": 8,
    "cpus_per_task": 16,
    "time_s": 7230,
    "account": "abc123",
    "partition": "gpu",
    "memory": "64G",
    "output": Path("/jobs/a/output.txt"),
    "warn_s": 90,
    "is_requeued": True,
    "working_folder": Path("/home/me"),
}


def request(**changes: object) -> JobRequest:
    return JobRequest(**{**FULL, **changes})


def bare(**changes: object) -> JobRequest:
    fixed = {name: FULL[name] for name in ("name", "nodes", "time_s", "output", "working_folder")}
    return JobRequest(**{**fixed, **changes})


def test_slurm_is_asked_in_its_words() -> None:
    lines = slurm.directives(request(qos="high", switches=1, extra=("#SBATCH --constraint=a100",)))
    assert lines == [
        "#SBATCH --job-name=train",
        "#SBATCH --nodes=4",
        "#SBATCH --ntasks-per-node=2",
        "#SBATCH --cpus-per-task=16",
        "#SBATCH --gpus-per-node=8",
        "#SBATCH --mem=64G",
        "#SBATCH --time=02:00:30",
        "#SBATCH --account=abc123",
        "#SBATCH --partition=gpu",
        "#SBATCH --qos=high",
        "#SBATCH --switches=1",
        "#SBATCH --output=/jobs/a/output.txt",
        "#SBATCH --chdir=/home/me",
        "#SBATCH --signal=B:USR1@90",
        "#SBATCH --open-mode=append",
        "#SBATCH --requeue",
        "#SBATCH --constraint=a100",
    ]


@pytest.mark.parametrize("scheduler", [slurm, lsf, pbs, sge, flux])
def test_a_folder_with_a_blank_stays_one_word(scheduler) -> None:
    folder = Path("/home/me/sub mit")
    lines = scheduler.directives(bare(nodes=1, working_folder=folder, output=folder / "output.txt"))
    named = [line for line in lines if "sub mit" in line]
    assert named
    assert all(any("sub mit" in word for word in shlex.split(line[1:])) for line in named)


def test_a_folder_with_a_line_break_is_refused() -> None:
    with pytest.raises(TopoutError, match="cannot stand in a job script"):
        slurm.directives(bare(working_folder=Path("/home/n\nl")))


def test_a_job_that_names_nodes_and_nothing_else_gets_them_whole() -> None:
    assert slurm.directives(bare())[-2:] == ["#SBATCH --no-requeue", "#SBATCH --exclusive"]
    assert "#PBS -l place=scatter:excl" in pbs.directives(bare())
    assert "#BSUB -x" in lsf.directives(bare())
    assert "#FLUX: --exclusive" in flux.directives(bare())
    assert "#SBATCH --exclusive" not in slurm.directives(bare(gpus_per_node=1))


def test_a_job_that_goes_on_without_a_node_is_not_ended_with_it() -> None:
    assert "#SBATCH --no-kill" in slurm.directives(bare(outlives_nodes=True))
    assert "#SBATCH --no-kill" not in slurm.directives(bare())
    # Slurm ends the step as well
    assert "--no-kill" in slurm.task_prefix(bare(outlives_nodes=True))
    job = Allocation(scheduler="slurm", job_id="1", hosts=("n1", "n2"))
    assert "--no-kill" in slurm.start_commands(job, ["agent"], num_hosts=2)[0]


def test_lsf_is_asked_in_its_words() -> None:
    # bsub(1): -W in hours and minutes; -wa would signal the ranks too, and is not asked for
    assert lsf.directives(request()) == [
        "#BSUB -J train",
        "#BSUB -n 8",
        '#BSUB -R "span[ptile=2]"',
        '#BSUB -R "affinity[core(16)]"',
        '#BSUB -gpu "num=8"',
        '#BSUB -R "rusage[mem=64G]"',
        "#BSUB -W 02:01",
        "#BSUB -P abc123",
        "#BSUB -q gpu",
        "#BSUB -o /jobs/a/output.txt",
        "#BSUB -cwd /home/me",
        "#BSUB -r",
    ]


def test_pbs_is_asked_in_its_words() -> None:
    # qsub(1B) of OpenPBS: a chunk for each node; there is no warning to ask for
    assert pbs.directives(request()) == [
        "#PBS -N train",
        "#PBS -l select=4:ncpus=32:mpiprocs=2:ompthreads=16:ngpus=8:mem=64gb",
        "#PBS -l place=scatter",
        "#PBS -l walltime=02:00:30",
        "#PBS -A abc123",
        "#PBS -q gpu",
        "#PBS -j oe",
        "#PBS -o /jobs/a/output.txt",
        "#PBS -r y",
    ]


def test_ranks_of_pbs_get_a_core_each_where_nobody_says_how_many() -> None:
    lines = pbs.directives(request(cpus_per_task=None, tasks_per_node=4, memory=None))
    assert "#PBS -l select=4:ncpus=4:mpiprocs=4:ngpus=8" in lines
    assert "#PBS -l select=4" in pbs.directives(bare())


def test_flux_is_asked_in_its_words() -> None:
    # flux-batch(1)
    assert flux.directives(request(memory=None)) == [
        "#FLUX: --job-name=train",
        "#FLUX: --nodes=4",
        "#FLUX: --nslots=4",
        "#FLUX: --cores-per-slot=32",
        "#FLUX: --gpus-per-slot=8",
        "#FLUX: --time-limit=7230s",
        "#FLUX: --bank=abc123",
        "#FLUX: --queue=gpu",
        "#FLUX: --output=/jobs/a/output.txt",
        "#FLUX: --cwd=/home/me",
        "#FLUX: --signal=SIGUSR1@90s",
    ]


def test_grid_engine_is_asked_in_its_words() -> None:
    assert sge.directives(request(gpus_per_node=None, memory=None, extra=("#$ -pe mpi 128",))) == [
        "#$ -N train",
        "#$ -l h_rt=02:00:30",
        "#$ -P abc123",
        "#$ -q gpu",
        "#$ -j y",
        "#$ -o /jobs/a/output.txt",
        "#$ -wd /home/me",
        "#$ -notify",
        "#$ -r y",
        "#$ -pe mpi 128",
    ]


def test_grid_engine_needs_the_name_of_a_parallel_environment() -> None:
    with pytest.raises(TopoutError) as caught:
        sge.directives(bare(nodes=2))
    assert "-pe mpi" in caught.value.do
    assert sge.directives(bare(nodes=1))[0] == "#$ -N train"


@pytest.mark.parametrize(
    ("scheduler", "changes"),
    [
        (lsf, {"qos": "high"}),
        (pbs, {"switches": 1}),
        (sge, {"gpus_per_node": 4}),
        (sge, {"memory": "64G"}),
        (flux, {"memory": "64G"}),
    ],
)
def test_what_a_scheduler_has_no_word_for_is_refused(scheduler: object, changes: dict[str, object]) -> None:
    with pytest.raises(TopoutError) as caught:
        scheduler.directives(bare(nodes=1, **changes))  # type: ignore[attr-defined]
    (name,) = changes
    assert name in caught.value.problem
    assert "line" in caught.value.do


@pytest.mark.parametrize("scheduler", [slurm, lsf, pbs, sge, flux])
def test_a_script_is_submitted_and_its_number_read(scheduler: object, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    assert str(script) in scheduler.submit_command(script)  # type: ignore[attr-defined]
    said, number = {
        slurm: ("Welcome\n1234;cluster\n", "1234"),
        lsf: ("Job <1234> is submitted to queue <normal>.\n", "1234"),
        pbs: ("1234.server.example.org\n", "1234.server.example.org"),
        sge: ("1234\n", "1234"),
        flux: ("ƒM7Zq9AKHno\n", "ƒM7Zq9AKHno"),
    }[scheduler]
    assert scheduler.read_job_id(said) == number  # type: ignore[attr-defined]
    assert scheduler.read_job_id("") is None  # type: ignore[attr-defined]
    assert scheduler.read_job_id("error: no such queue\n") is None  # type: ignore[attr-defined]


def test_slurms_answer_of_old_is_read_too() -> None:
    assert slurm.read_job_id("Submitted batch job 77\n") == "77"


def test_bsub_reads_the_script_from_its_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bsub").write_text('#!/bin/sh\nread line\necho "Job <7> took $line"\n')
    (tmp_path / "bsub").chmod(0o755)
    script = tmp_path / "it's a job.sh"
    script.write_text("#!/bin/bash\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    done = subprocess.run(lsf.submit_command(script), capture_output=True, text=True, check=True)
    assert done.stdout == "Job <7> took #!/bin/bash\n"


def test_a_scheduler_starts_every_rank_of_a_container() -> None:
    assert slurm.task_prefix(request())[:3] == ["srun", "--ntasks=8", "--ntasks-per-node=2"]
    assert "--cpus-per-task=16" in slurm.task_prefix(request())
    assert {"PALS_PPN=2", "PALS_CPU_BIND=none"} < set(pbs.task_prefix(request())[1:-3])
    assert pbs.task_prefix(request())[-3:] == ["mpiexec", "-n", "8"]
    assert sge.task_prefix(request()) == ["mpirun", "-np", "8"]
    assert flux.task_prefix(request())[:5] == ["flux", "run", "--nodes=4", "--exclusive", "--tasks-per-node=2"]


@pytest.mark.parametrize("program", ["mpiexec.hydra", "mpirun.openmpi"])
def test_whichever_mpiexec_a_pbs_site_has_takes_the_words(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (found := shutil.which(program)) is None:
        pytest.skip(f"no {program} here")
    (tmp_path / "mpiexec").write_text(f'#!/bin/sh\nexec {found} "$@"\n')
    (tmp_path / "mpiexec").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "OMPI_MCA_rmaps_base_oversubscribe"):
        monkeypatch.setenv(name, "1")
    show = [sys.executable, "-c", "import os; os.write(1, b'<%d>' % len(os.sched_getaffinity(0)))"]
    words = [*pbs.task_prefix(bare(nodes=1, tasks_per_node=2)), *show]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == f"<{len(os.sched_getaffinity(0))}>" * 2, "nobody bound them"


def test_lsf_alone_cannot_start_ranks_in_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TopoutError, match="does not start ranks"):
        lsf.task_prefix(request())
    (tmp_path / "jsrun").write_text("#!/bin/sh\n")
    (tmp_path / "jsrun").chmod(0o755)
    assert lsf.task_prefix(request())[:7] == ["jsrun", "--nrs", "4", "--rs_per_host", "1", "--tasks_per_rs", "2"]


def test_only_schedulers_with_a_queue_take_jobs() -> None:
    for module in (slurm, lsf, pbs, sge, flux):
        assert re.fullmatch(r"SIG[A-Z0-9]+", module.WARNING_SIGNAL)
    for module in (local, openmpi, hydra):
        assert not hasattr(module, "submit_command")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "00:00:00"), (59, "00:00:59"), (7200, "02:00:00"), (360000, "100:00:00")]
)
def test_times_are_written_with_all_their_hours(seconds: int, text: str) -> None:
    assert hours_minutes_seconds(seconds) == text
