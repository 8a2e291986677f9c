"""Real jobs of Grid Engine: their environment is understood, and their hosts can be started on."""

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.cluster import Nodes
from tests.lab.sge_cluster import GridEngine

pytestmark = pytest.mark.lab

DETECT = """
import dataclasses, json, os
from topout.launch.detect import detect_allocation
print(json.dumps({"on": os.uname().nodename, **dataclasses.asdict(detect_allocation())}), flush=True)
"""
START = """
import os, subprocess, sys
from topout.launch.detect import detect_allocation
from topout.launch.schedulers import sge
found = detect_allocation()
show = "import os; from topout.launch.detect import detect_allocation; place = detect_allocation().task;" \\
    "print(os.uname().nodename, place.node_rank, place.world_size, os.environ['WORD'], os.getcwd())"
commands = sge.start_commands(found, [sys.executable, "-c", show], num_hosts=len(found.hosts))
environment = {**sge.start_environment(os.environ), "WORD": "it's passed"}
running = [subprocess.Popen(words, env=environment) for words in commands]
sys.exit(any([process.wait(timeout=90) for process in running]))
"""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GridEngine]:
    with Nodes(2) as nodes, GridEngine(nodes, tmp_path_factory.mktemp("sge")) as engine:
        yield engine


def program(folder: Path, text: str) -> str:
    path = folder / "program.py"
    path.write_text(text)
    return shlex.join([sys.executable, str(path)])


def test_a_parallel_job_knows_its_hosts_with_its_own_one_first(engine: GridEngine, tmp_path: Path) -> None:
    found = json.loads(engine.qsub(f"{program(tmp_path, DETECT)}\n", "-pe", "lab", "4"))
    assert found["scheduler"] == "sge"
    assert sorted(found["hosts"]) == ["n1", "n2"]
    assert found["hosts"][0] == found["on"]
    assert (found["task"], found["num_tasks"]) == (None, None)


def test_a_serial_job_runs_on_its_host_alone(engine: GridEngine, tmp_path: Path) -> None:
    found = json.loads(engine.qsub(f"{program(tmp_path, DETECT)}\n"))
    assert (found["hosts"], found["task"]) == ([], None)


def test_tasks_of_an_array_have_jobs_of_their_own(engine: GridEngine, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    engine.qsub(f"{program(tmp_path, DETECT)} > {out}/$SGE_TASK_ID\n", "-t", "1-2")
    ids = [json.loads(path.read_text())["job_id"] for path in sorted(out.iterdir())]
    assert [name.rpartition(".")[2] for name in ids] == ["1", "2"]


def test_agents_start_once_on_each_host_with_variables_and_folder(engine: GridEngine, tmp_path: Path) -> None:
    said = engine.qsub(f"{program(tmp_path, START)}\n", "-pe", "lab", "4", cwd=tmp_path)
    lines = sorted(said.splitlines())
    assert [line.split(" ", 1)[0] for line in lines] == ["n1", "n2"], said
    assert sorted(line.split()[1] for line in lines) == ["0", "1"]
    assert all(line.endswith(f" 2 it's passed {tmp_path}") for line in lines), said


@pytest.mark.parametrize("launcher", ["mpirun.openmpi", "mpirun.mpich"])
def test_ranks_of_mpirun_in_a_job_find_their_head(engine: GridEngine, tmp_path: Path, launcher: str) -> None:
    detect = program(tmp_path, DETECT)
    # the laboratory's own way to start on other nodes would hide Grid Engine's
    script = f"unset OMPI_MCA_plm_rsh_agent HYDRA_LAUNCHER HYDRA_LAUNCHER_EXEC\n{launcher} -np 4 {detect}\n"
    said = engine.qsub(script, "-pe", "lab", "4")
    found = [json.loads(line) for line in said.replace("}{", "}\n{").splitlines() if line.startswith("{")]
    assert sorted(answer["task"]["rank"] for answer in found) == [0, 1, 2, 3], said
    assert {answer["on"] for answer in found} == {"n1", "n2"}
    assert len({answer["job_id"] for answer in found}) == 1
    assert len({answer["head"] for answer in found}) == 1
    assert all(answer["hosts"] == [] for answer in found)


def test_topout_started_once_trains_on_all_hosts_of_the_job(engine: GridEngine, tmp_path: Path) -> None:
    train = Path(__file__).resolve().parents[1] / "scripts/two_hosts.py"
    topout = shlex.join([sys.executable, "-m", "topout", "run", "--no-report", str(train)])
    said = engine.qsub(f"{topout}; echo code $?\n", "-pe", "lab", "4", cwd=tmp_path)
    assert "rank 0 of 2 on n" in said, said
    assert said.endswith("code 0\n"), said
    (run,) = (tmp_path / "topout-runs").iterdir()
    hosts = [rank["host"] for rank in json.loads((run / "run.json").read_text())["ranks"]]
    assert sorted(hosts) == ["n1", "n2"]
