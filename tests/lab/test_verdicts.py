"""What two nodes and a slow link do to training is named as what it is, and by the host's name."""

import json
from pathlib import Path

import pytest

from tests.lab import ways
from tests.lab.cluster import Slurm

pytestmark = pytest.mark.lab
SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


def analysis(folder: Path) -> dict:
    (run,) = (folder / "topout-runs").iterdir()
    return json.loads((run / "analysis.json").read_text())


@pytest.mark.parametrize("way", ways.SLURM)
def test_gradients_over_one_gigabit_are_communication_bandwidth(slurm: Slurm, tmp_path: Path, way: str) -> None:
    ended = ways.run(way, slurm, tmp_path, "run", SCRIPTS / "wide_gradients.py", 15)
    assert ended.returncode == 0, ended.stderr
    assert "COMMUNICATION-BANDWIDTH" in ended.stderr.upper()
    assert analysis(tmp_path)["verdict"]["name"] == "communication-bandwidth"


def test_a_straggler_is_named_with_its_host(slurm: Slurm, tmp_path: Path) -> None:
    ended = ways.run("srun for every rank", slurm, tmp_path, "run", SCRIPTS / "two_hosts.py", 60, "slow:1")
    assert ended.returncode == 0, ended.stderr
    found = analysis(tmp_path)
    assert [(item["rank"], item["host"]) for item in found["measures"]["stragglers"]] == [(1, "n2")]
    assert "n2" in ended.stderr


def test_clocks_of_nodes_that_booted_at_different_times_are_aligned(slurm: Slurm, tmp_path: Path) -> None:
    """The monotonic clocks of the nodes are 1,000 s apart."""
    ways.run("srun for every rank", slurm, tmp_path, "run", SCRIPTS / "two_hosts.py", 60)
    skew_ns = analysis(tmp_path)["measures"]["communication"]["clock_skew_ns"]
    assert skew_ns is not None
    assert skew_ns < 20e6
