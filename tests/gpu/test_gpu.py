"""On a GPU: nothing changes a bit, the device's own time is recorded, and the device tree comes out of a profile."""

import json
import re

import pytest

from tests.conftest import REPOSITORY

pytestmark = pytest.mark.gpu
SCRIPT = REPOSITORY / "tests" / "scripts" / "on_gpu.py"


def run_way(run_topout, folder, way, *flags):
    done = run_topout(["run", "-n", 1, "--runs", folder, *flags, SCRIPT, way], timeout=280)
    run = max(folder.iterdir(), key=lambda path: path.stat().st_mtime)
    return done, json.loads((run / "analysis.json").read_text()) if (run / "analysis.json").exists() else None, run


def digest(text):
    return re.search(r"^DIGEST ([0-9a-f]{64})$", text, re.MULTILINE)[1]


@pytest.mark.parametrize("way", ["plain", "autocast", "compiled", "graph", "launching"])
def test_training_on_a_gpu_is_bit_identical(way, run_topout, tmp_path):
    recorded, _, run = run_way(run_topout, tmp_path / "runs", way)
    assert recorded.code == 0, recorded.stderr
    assert json.loads((run / "run.json").read_text())["notes"] == []
    bare, _, _ = run_way(run_topout, tmp_path / "runs", way, "--no-record")
    assert digest(recorded.stdout) == digest(bare.stdout)


def test_device_time_utilisation_and_memory_are_measured(run_topout, tmp_path):
    done, analysis, _ = run_way(run_topout, tmp_path / "runs", "autocast")
    assert done.code == 0, done.stderr
    measures = analysis["measures"]
    assert measures["shares"]["backward"] > measures["shares"]["forward"] > 0.05
    assert 0.01 < measures["compute"]["model_flops_utilisation"] < 1
    assert measures["memory"]["peak_device_bytes"] > 100 << 20
    assert measures["environment"]["uses_autocast"] is True


def test_a_starved_gpu_is_an_input_verdict(run_topout, tmp_path):
    done, analysis, _ = run_way(run_topout, tmp_path / "runs", "starved")
    assert done.code == 0, done.stderr
    assert analysis["verdict"]["name"].startswith("input-")


def test_a_gpu_that_waits_for_launches_is_a_host_verdict(run_topout, tmp_path):
    done, analysis, _ = run_way(run_topout, tmp_path / "runs", "launching")
    assert done.code == 0, done.stderr
    assert analysis["verdict"]["name"] == "host"
    # its kernels take a tenth of the step or two
    assert analysis["verdict"]["share"] > 0.5
    assert not {"PR01", "PR02"} & {finding["code"] for finding in analysis["findings"][:2]}


def test_a_profile_gives_the_device_tree(run_topout, tmp_path):
    done, analysis, _ = run_way(run_topout, tmp_path / "runs", "autocast", "--profile", "20-29")
    assert done.code == 0, done.stderr
    device = analysis["measures"]["device"]
    product = device["load_balance"] * device["communication_efficiency"] * device["orchestration_efficiency"]
    assert product == pytest.approx(device["parallel_efficiency"], abs=1e-9)
    assert device["tensor_core_share"] > 0.1


def test_out_of_device_memory_is_a_verdict(run_topout, tmp_path):
    done, analysis, _ = run_way(run_topout, tmp_path / "runs", "out-of-memory")
    assert done.code == 1
    assert "out of memory" in done.stderr.splitlines()[-1]
    assert analysis["verdict"]["name"] == "memory-size"
