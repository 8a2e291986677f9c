"""`topout scale` on a real Slurm of two nodes: one job for each point, and points on part of one allocation."""

import json
from pathlib import Path

import pytest

from tests.lab import ways
from tests.lab.cluster import Slurm

pytestmark = pytest.mark.lab
SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "batches.py"
WORDS = ["--ranks", "1,2", "--mode", "strong", "--batch", "8", "--repeats", "1"]


def hosts_of(folder: Path) -> list[list[str]]:
    """Of every run, by its number of ranks."""
    contents = [json.loads(path.read_text()) for path in (folder / "topout-runs").glob("*/run.json")]
    return sorted([[rank["host"] for rank in content["ranks"]] for content in contents], key=len)


def test_points_run_on_part_of_the_allocation(slurm: Slurm, tmp_path: Path) -> None:
    ended = ways.run("once in an allocation", slurm, tmp_path, "scale", *WORDS, "--json", SCRIPT)
    assert ended.returncode == 0, ended.stderr
    points = json.loads(ended.stdout)["points"]
    assert [(point["ranks"], point["batch"]) for point in points] == [(1, 8), (2, 4)]
    assert hosts_of(tmp_path) == [["n1"], ["n1", "n2"]]


def test_each_point_is_a_job_that_is_waited_for(slurm: Slurm, tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text('[site]\nscheduler = "slurm"\ntime = "5m"\n')
    command = [*ways.TOPOUT, "scale", "--submit", "--per-node", "1", "--ranks", "1,2"]
    words = ["--mode", "strong", "--batch", "6", "--repeats", "2", "--json", SCRIPT]
    env = {"TOPOUT_SITE": str(tmp_path / "site.toml"), "XDG_CONFIG_HOME": str(tmp_path)}
    ended = slurm.run([*command, *words], cwd=tmp_path, env=env, timeout=200)
    assert ended.returncode == 0, ended.stderr
    points = json.loads(ended.stdout)["points"]
    assert [(point["ranks"], point["batch"], point["num_runs"]) for point in points] == [(1, 6, 2), (2, 3, 2)]
    assert "Waiting for 1 rank" in ended.stderr
    jobs = sorted((tmp_path / "topout-runs" / "jobs").iterdir())
    assert [path.name.split("-")[-2] for path in jobs] == ["1", "2"]
    # and later, from the jobs alone
    again = slurm.run([*ways.TOPOUT, "scale", *jobs], cwd=tmp_path, env=env)
    assert again.returncode == 0, again.stderr
    assert "strong scaling" in again.stdout
