"""The ways into a job of two nodes, each as a person would type it on the first node or the login node."""

import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.lab.cluster import Slurm

TOPOUT = [sys.executable, "-m", "topout"]
WAYS: dict[str, list[str]] = {
    "srun for every rank": ["srun", "-N2", "-n2"],
    "once in an allocation": ["salloc", "-Q", "-N2"],
    "mpirun of Open MPI": ["mpirun.openmpi", "-np", "2", "--host", "n1,n2"],
    "mpirun of MPICH": ["mpirun.mpich", "-np", "2", "-hosts", "n1,n2"],
}
SLURM = ("srun for every rank", "once in an allocation")


def despite_mpich(run: "Callable[[], subprocess.CompletedProcess[str]]") -> "subprocess.CompletedProcess[str]":
    """MPICH's mpirun may write to a proxy that is not there yet, and dies of it before any task has started."""
    for _ in range(3):
        done = run()
        if done.returncode != -signal.SIGPIPE:
            break
    return done


def start(way: str, slurm: Slurm, folder: Path, *words: object, env: Mapping[str, str] | None = None, **more: Any):
    """`topout WORDS` as a process, in the given way; MPI's launchers run on n1, Slurm's on the login node."""
    if way == "once in an allocation":
        # on the first node, as a batch script would
        return slurm.popen([*WAYS[way], *slurm.nodes[0].prefix, *TOPOUT, *words], cwd=folder, env=env, **more)
    if way in SLURM:
        return slurm.popen([*WAYS[way], *TOPOUT, *words], cwd=folder, env=env, **more)
    return slurm.nodes[0].popen([*WAYS[way], *TOPOUT, *words], cwd=folder, env=env, **more)


def run(
    way: str, slurm: Slurm, folder: Path, *words: object, env: Mapping[str, str] | None = None, timeout: float = 120
) -> "subprocess.CompletedProcess[str]":
    return despite_mpich(lambda: _run_once(way, slurm, folder, *words, env=env, timeout=timeout))


def _run_once(
    way: str, slurm: Slurm, folder: Path, *words: object, env: Mapping[str, str] | None, timeout: float
) -> "subprocess.CompletedProcess[str]":
    process = start(way, slurm, folder, *words, env=env)
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        stdout, stderr = process.communicate()
        raise AssertionError(f"{way}: {timeout} s are over\n{stdout[-3000:]}\n{stderr[-3000:]}") from None
    return subprocess.CompletedProcess([way, *map(str, words)], process.returncode, stdout, stderr)
