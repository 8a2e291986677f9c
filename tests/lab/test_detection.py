"""What a process finds out about its job, in real jobs: Slurm's steps and shells, mpirun of Open MPI and of MPICH."""

import json
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.lab import ways
from tests.lab.cluster import Nodes, Slurm

pytestmark = pytest.mark.lab

DETECT = """
import dataclasses, json, socket
from topout.launch.detect import detect_allocation
found = detect_allocation()
print(json.dumps({"on": socket.gethostname(), **dataclasses.asdict(found)}) if found else "null", flush=True)
"""
START = """
import os, subprocess, sys
from topout.launch.detect import detect_allocation
from topout.launch.schedulers import slurm
found = detect_allocation()
show = "import os; from topout.launch.detect import detect_allocation as d; a = d(); t = a.task;" \\
    "print(os.uname().nodename, t.node_rank if t else 'alone', *sorted(os.sched_getaffinity(0)), " \\
    "'gpus', os.environ.get('CUDA_VISIBLE_DEVICES'), os.environ['WORD'])"
for words in slurm.start_commands(found, [sys.executable, "-c", show], num_hosts=int(sys.argv[1])):
    subprocess.run(words, env={**slurm.start_environment(os.environ), "WORD": "passed"}, check=True, timeout=60)
"""


def answers(said: str) -> list[dict[str, Any]]:
    """One for each process, in the order of ranks; mpirun may put two on a line."""
    found, place = [], said.find("{")
    while place >= 0:
        answer, end = json.JSONDecoder().raw_decode(said, place)
        found.append(answer)
        place = said.find("{", end)
    return sorted(found, key=lambda answer: answer["task"]["rank"] if answer["task"] else 0)


def detect_in(slurm: Slurm, tmp_path: Path, before: Sequence[object]) -> list[dict[str, Any]]:
    """What the processes that `before` starts on the login node find."""
    program = tmp_path / "detect.py"
    program.write_text(DETECT)
    done = slurm.run([*before, sys.executable, program], cwd=tmp_path)
    assert done.returncode == 0, done
    return answers(done.stdout)


def job(slurm: Slurm, script: str, *options: str) -> str:
    number = slurm.sbatch(script, *options)
    slurm.wait(number)
    return slurm.output(number)


@pytest.fixture
def detect(tmp_path: Path) -> str:
    """The program as words of a shell script."""
    (tmp_path / "detect.py").write_text(DETECT)
    return shlex.join([sys.executable, str(tmp_path / "detect.py")])


@pytest.fixture
def start(tmp_path: Path) -> str:
    (tmp_path / "start.py").write_text(START)
    return shlex.join([sys.executable, str(tmp_path / "start.py")])


def test_tasks_of_srun_know_each_other(slurm: Slurm, tmp_path: Path) -> None:
    first, second = detect_in(slurm, tmp_path, ["srun", "-N2", "-n2"])
    assert [(found["on"], found["task"]["rank"], found["task"]["node_rank"]) for found in (first, second)] == [
        ("n1", 0, 0),
        ("n2", 1, 1),
    ]
    assert first["job_id"] == second["job_id"]
    assert second["head"] == "n1", "not the login node, where srun runs"
    assert second["task"]["local_size"] == 1


def test_a_batch_script_its_steps_and_their_single_tasks_are_told_apart(slurm: Slurm, detect: str) -> None:
    said = job(slurm, f"{detect}\nsrun -N1 -n1 {detect}\nsrun -l {detect}\n", "-N2", "-n2")
    script, single, *tasks = answers(said)
    assert (script["task"], script["hosts"], script["num_tasks"]) == (None, ["n1", "n2"], 2)
    assert (single["task"], single["hosts"], single["num_tasks"]) == (None, ["n1"], None)
    assert sorted(task["task"]["rank"] for task in tasks) == [0, 1]
    assert len({script["job_id"], single["job_id"], *(task["job_id"] for task in tasks)}) == 3


def test_an_allocation_is_found_on_the_login_node(slurm: Slurm, tmp_path: Path) -> None:
    (found,) = detect_in(slurm, tmp_path, ["salloc", "-Q", "-N2", "-n2"])
    assert (found["on"], found["task"], found["hosts"]) == ("login", None, ["n1", "n2"])


def test_a_shell_at_a_terminal_starts_ranks_and_steps_started_from_it_are_tasks(
    slurm: Slurm, tmp_path: Path, detect: str
) -> None:
    shell = tmp_path / "shell.sh"
    # all but the first of such shells end at once, for want of input
    steps = f"{detect} < /dev/null; srun --overlap --cpu-bind=none -N2 -n2 -o task-%t {detect}"
    shell.write_text(f"#!/bin/sh\n[ $SLURM_PROCID = 0 ] || exit 0\n{steps}\n")
    shell.chmod(0o755)
    at_terminal = [sys.executable, "-c", "import pty, sys; pty.spawn(sys.argv[1:])"]
    done = slurm.run([*at_terminal, "srun", "-N2", "-n2", "--pty", shell], cwd=tmp_path, timeout=60)
    assert done.returncode == 0, done
    (shell_found,) = answers(done.stdout)
    tasks = [json.loads((tmp_path / f"task-{rank}").read_text()) for rank in range(2)]
    assert (shell_found["task"], shell_found["hosts"], shell_found["num_tasks"]) == (None, ["n1", "n2"], 2)
    assert [task["task"]["rank"] for task in tasks] == [0, 1]


def test_rank_0_is_where_a_layout_by_file_puts_it(slurm: Slurm, tmp_path: Path, detect: str) -> None:
    (tmp_path / "order").write_text("n2\nn1\n")
    said = job(slurm, f"SLURM_HOSTFILE={tmp_path}/order srun -m arbitrary {detect}\n", "-N2", "-n2")
    first, second = answers(said)
    assert (first["on"], first["task"]["node_rank"], second["on"]) == ("n2", 0, "n1")
    assert first["head"] == second["head"] == "n2"


@pytest.mark.parametrize("launcher", ["mpirun.openmpi", "mpirun.mpich"])
def test_mpirun_on_two_nodes_tells_where_it_runs(nodes: Nodes, tmp_path: Path, launcher: str) -> None:
    (tmp_path / "detect.py").write_text(DETECT)
    hosts = ["--host", "n2,n1"] if "openmpi" in launcher else ["-hosts", "n2,n1"]
    # a shell between the launcher and topout, as in many a script
    command = f"{sys.executable} {tmp_path}/detect.py; :"
    words = [launcher, "-np", "2", *hosts, "sh", "-c", command]
    done = ways.despite_mpich(lambda: nodes[0].run(words, cwd=tmp_path))
    assert done.returncode == 0, done
    first, second = answers(done.stdout)
    assert {first["on"], second["on"]} == {"n1", "n2"}
    assert first["job_id"] == second["job_id"]
    assert first["hosts"] == second["hosts"] == []
    assert first["head"] == second["head"]
    assert first["head"] in ("n1", "10.77.0.1"), "where mpirun runs"


@pytest.mark.parametrize("launcher", ["mpirun.openmpi", "mpirun.mpich"])
def test_mpirun_in_a_batch_script_is_believed_before_slurm(slurm: Slurm, detect: str, launcher: str) -> None:
    said = job(
        slurm, f"unset HYDRA_LAUNCHER HYDRA_LAUNCHER_EXEC OMPI_MCA_plm_rsh_agent\n{launcher} {detect}\n", "-N2", "-n2"
    )
    first, second = answers(said)
    assert (first["task"]["rank"], second["task"]["rank"]) == (0, 1)
    assert first["task"]["world_size"] == 2
    assert first["hosts"] == second["hosts"] == ["n1", "n2"]
    assert first["head"] == second["head"] == first["on"] == "n1"
    assert first["job_id"] == second["job_id"]


# as ssh, which takes no variables along
SSH = """#!/bin/sh
for name in $(env | sed -n "s/^\\(SLURM_[A-Z0-9_]*\\)=.*/\\1/p"); do unset "$name"; done
exec {rsh} "$@"
"""
SAYS_ITS_PLACE = """
import os, sys
with open(f"{sys.argv[1]}/place-{os.uname().nodename}", "w") as file:
    file.write(f"{os.environ['RANK']} of {os.environ['WORLD_SIZE']}, {os.environ.get('SLURM_JOB_ID')}")
"""


def test_ranks_that_mpirun_starts_over_ssh_within_a_job_find_each_other(slurm: Slurm, tmp_path: Path) -> None:
    (tmp_path / "says.py").write_text(SAYS_ITS_PLACE)
    ssh = tmp_path / "ssh"
    ssh.write_text(SSH.format(rsh=slurm.nodes.rsh))
    ssh.chmod(0o755)
    mpirun = f"mpirun.openmpi --mca plm rsh --mca plm_rsh_agent {ssh} --mca ras ^slurm --host n1,n2 -np 2"
    topout = f"{sys.executable} -m topout run --no-report {tmp_path}/says.py {tmp_path}"
    number = slurm.sbatch(f"{mpirun} {topout}\n", "-N2", "-n2")
    slurm.wait(number)
    places = {path.name: path.read_text() for path in tmp_path.glob("place-*")}
    assert places == {"place-n1": f"0 of 2, {number}", "place-n2": "1 of 2, None"}, slurm.output(number)


def test_agents_start_once_on_each_host_with_the_jobs_cores(slurm: Slurm, start: str) -> None:
    cores = [str(node.cores[0]) for node in slurm.nodes]
    said = job(slurm, f"{start} 2\n", "-N2", "-n2", "-c1")
    assert sorted(said.splitlines()) == [f"n1 0 {cores[0]} gpus None passed", f"n2 1 {cores[1]} gpus None passed"]


def test_agents_can_be_started_on_the_first_host_alone(slurm: Slurm, start: str) -> None:
    assert job(slurm, f"{start} 1\n", "-N2", "-n2").split()[:2] == ["n1", "alone"]


class SlurmWithGpus(Slurm):
    """Each node has two, which are no more than device files."""

    def _write_configuration(self) -> None:
        super()._write_configuration()
        path = self.folder / "slurm.conf"
        lines = path.read_text().splitlines()
        lines = [f"{line} Gres=gpu:2" if line.startswith("NodeName=") else line for line in lines]
        path.write_text("\n".join(["GresTypes=gpu", *lines]) + "\n")
        for number in range(2):
            os.mknod(self.folder / f"gpu{number}", 0o20666, os.makedev(1, 3))
        (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/gpu[0-1]\n")


@pytest.fixture(scope="module")
def slurm_with_gpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with Nodes(2, cores_per_node=2) as nodes, SlurmWithGpus(nodes, tmp_path_factory.mktemp("slurm")) as slurm:
        yield slurm


@pytest.mark.parametrize(
    "options",
    [
        ["-N2", "--ntasks-per-node=2", "--gpus-per-task=1"],
        ["-N2", "--ntasks-per-node=2", "--gpus-per-node=2"],
        ["-N2", "--ntasks-per-node=1", "--cpus-per-task=2", "--gres=gpu:2"],
        ["-N2", "--exclusive", "--gpus=4"],
    ],
    ids=" ".join,
)
def test_an_agent_gets_all_gpus_and_cores_that_the_job_has_on_its_host(
    slurm_with_gpus: Slurm, start: str, options: list[str]
) -> None:
    # as many sites tell users to set it, for steps of one task a rank
    said = job(slurm_with_gpus, f"export SRUN_CPUS_PER_TASK=1\n{start} 2\n", *options)
    cores = " ".join(map(str, slurm_with_gpus.nodes[0].cores))
    assert sorted(said.splitlines()) == [f"n1 0 {cores} gpus 0,1 passed", f"n2 1 {cores} gpus 0,1 passed"]
