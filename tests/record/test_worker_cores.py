"""Loader workers keep every core of their rank, under each policy and whatever OpenMP was told."""

import json
import os
import subprocess
import sys

import pytest

from tests.host.sys_trees import plant
from topout.host.binding import bind
from topout.host.openmp_traps import traps_set
from topout.host.topology import read_host

SCRIPT = """
import json, os, sys, threading
import torch
from torch.utils.data import DataLoader, Dataset


class Cores(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        at_start = sorted(os.sched_getaffinity(0))
        torch.ones(300, 300) @ torch.ones(300, 300)
        return json.dumps([at_start, sorted(os.sched_getaffinity(0))])


if __name__ == "__main__":
    method, is_persistent = sys.argv[1], "persistent" in sys.argv
    torch.ones(300, 300) @ torch.ones(300, 300)
    own = os.sched_getaffinity(0)
    settings = dict(os.environ)
    loader = DataLoader(
        Cores(), batch_size=1, num_workers=2, multiprocessing_context=method, persistent_workers=is_persistent
    )
    seen = [json.loads(text) for _ in range(2) for (text,) in loader]
    assert os.sched_getaffinity(0) == own, "the main thread has its own cores back"
    assert dict(os.environ) == settings
    print("CORES", json.dumps({"own": sorted(own), "workers": seen}), flush=True)
"""
ON_ANOTHER_MACHINE = """
import os
from topout.host import topology

FOLDER = {folder!r}
own = set(topology.allowed_cores(FOLDER + "/sys", FOLDER + "/proc"))


def narrow(pid, cores):
    global own
    own = set(cores)


# the kernel's own would refuse processors that are not here; children inherit these just as they inherit cores
os.sched_getaffinity, os.sched_setaffinity = lambda pid: set(own), narrow
read_host = topology.read_host
topology.read_host = lambda: read_host(os.environ, FOLDER + "/sys", FOLDER + "/proc")
"""
"""As sitecustomize of a launcher, whose ranks are forked from it."""
CLOSE = {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"}

pytestmark = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="with one core there is nothing that could be taken away"
)


def seen(stdout: str) -> dict[str, list]:
    (line,) = [line for line in stdout.splitlines() if line.startswith("CORES ")]
    return json.loads(line.removeprefix("CORES "))


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def cores_of_workers(run_topout, script, *options, method="fork", env=None, more=()):
    """What workers saw when they started and after their first product, and what their rank was given."""
    done = run_topout(["run", "--no-report", "-n", 1, *options, script, method, *more], env=env)
    assert done.code == 0, done.stderr
    (run,) = (script.parent / "topout-runs").iterdir()
    granted = json.loads((run / "run.json").read_text())["ranks"][0]["cores"]
    return seen(done.stdout), granted or sorted(os.sched_getaffinity(0))


def test_without_topout_workers_of_every_kind_are_left_with_one_core(script):
    """Shows the trap that the tests below step over."""
    for method in ("fork", "spawn"):
        command = [sys.executable, script, method]
        environment = {**os.environ, **CLOSE}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
        assert all(len(after) == 1 for _, after in seen(done.stdout)["workers"]), method


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_keep_their_cores_when_openmp_binds_threads(method, run_topout, script):
    found, granted = cores_of_workers(run_topout, script, method=method, env=CLOSE)
    assert len(granted) > 1
    assert found["workers"] == [[granted, granted]] * 8
    assert len(found["own"]) == 1, "what the user asked of OpenMP stands in the rank itself"


@pytest.mark.parametrize("policy", ["socket", "numa", "core", "node", "none"])
def test_workers_have_the_cores_of_their_rank_under_every_policy(policy, run_topout, script):
    """Of the default, auto, the test above tells."""
    found, granted = cores_of_workers(run_topout, script, "--bind", policy, env=CLOSE)
    assert found["workers"] == [[granted, granted]] * 8
    assert (len(granted) > 1) is (policy != "core")


@pytest.mark.parametrize(("tree", "visible"), [("power9_6gpu", "0,3"), ("epyc_8gpu", "4,0")])
def test_workers_have_the_cores_beside_the_gpu_of_their_rank(tree, visible, run_topout, script, tmp_path):
    """Several GPUs on two sockets, recorded: everything is real but the kernel's word on cores and devices."""
    roots = plant(tree, tmp_path / "machine")
    (tmp_path / "sitecustomize.py").write_text(ON_ANOTHER_MACHINE.format(folder=str(tmp_path / "machine")))
    # what an OpenMP library does to a rank's main thread
    first = "os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n    own = os"
    script.write_text(SCRIPT.replace("own = os", first))
    done = run_topout(
        ["run", "--no-report", "-n", 2, "--bind", "gpu", script, "fork"],
        env={**CLOSE, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": visible},
    )
    assert done.code == 0, done.stderr
    (run,) = (tmp_path / "topout-runs").iterdir()
    bound = bind(read_host({"CUDA_VISIBLE_DEVICES": visible}, *roots), 2, policy="gpu").ranks
    assert bound[0].numa != bound[1].numa
    for rank in bound:
        # only those of the first come to the terminal
        found, granted = seen((run / f"logs/rank-{rank.rank:05d}.out").read_text()), list(rank.cores)
        assert len(found["own"]) == 1
        assert found["workers"] == [[granted, granted]] * 8


@pytest.mark.gpu
def test_workers_beside_a_real_gpu_have_its_ranks_cores(run_topout, script):
    found, granted = cores_of_workers(run_topout, script, "--bind", "gpu", env=CLOSE)
    assert set(granted) <= os.sched_getaffinity(0)
    assert len(granted) > 1
    assert found["workers"] == [[granted, granted]] * 8
    assert len(found["own"]) == 1


def test_persistent_workers_keep_their_cores(run_topout, script):
    found, granted = cores_of_workers(run_topout, script, env=CLOSE, more=["persistent"])
    assert found["workers"] == [[granted, granted]] * 8


def test_workers_keep_their_cores_without_recording(run_topout, script):
    found, granted = cores_of_workers(run_topout, script, "--no-record", env=CLOSE)
    assert found["workers"] == [[granted, granted]] * 8


def test_a_script_that_narrows_itself_without_openmp_means_it(run_topout, script):
    first = min(os.sched_getaffinity(0))
    script.write_text(SCRIPT.replace("own = os", f"os.sched_setaffinity(0, [{first}])\n    own = os"))
    found, _ = cores_of_workers(run_topout, script)
    assert found["workers"] == [[[first], [first]]] * 8


def test_only_what_narrows_counts_as_a_trap():
    assert traps_set({"OMP_PROC_BIND": "close", "KMP_AFFINITY": "none", "OMP_NUM_THREADS": "4"}) == {
        "OMP_PROC_BIND": "close"
    }
    assert traps_set({"OMP_PROC_BIND": "FALSE", "OMP_PLACES": ""}) == {}
    assert traps_set({"OMP_PROC_BIND": "false", "OMP_PLACES": "cores", "GOMP_CPU_AFFINITY": "0"}) == {}
    assert traps_set({"OMP_PROC_BIND": "false", "KMP_AFFINITY": "compact"}) == {"KMP_AFFINITY": "compact"}
    assert traps_set({"KMP_AFFINITY": "granularity=fine,none"}) == {}
    assert traps_set({"OMP_PROC_BIND": "spread,close"}) == {"OMP_PROC_BIND": "spread,close"}
