"""Pipelines and cut layers of unmodified scripts: bubbles and waits come back as what they are, and no bit changes."""

import json
import re

import pytest

from tests.conftest import REPOSITORY, RunTopout
from topout.schema.pipeline import bubble_share

pytestmark = pytest.mark.alone

SCRIPTS = REPOSITORY / "tests" / "scripts"
POINTS = 0.05


def run_script(run_topout: RunTopout, folder, *words) -> tuple[dict, tuple[str, str]]:
    """(analysis, a digest of each rank's losses and weights)"""
    done = run_topout(["run", "-n", 2, "--runs", folder, *words])
    assert done.code == 0, done.stderr
    (run,) = folder.iterdir()
    (digests,) = re.findall(r"^DIGESTS ([0-9a-f]{64}) ([0-9a-f]{64})$", done.stdout, re.MULTILINE)
    path = run / "analysis.json"
    return json.loads(path.read_text()) if path.exists() else {}, digests


def digests_without(run_topout: RunTopout, folder, *words) -> tuple[str, str]:
    return run_script(run_topout, folder, "--no-record", *words)[1]


@pytest.mark.parametrize(("microbatches", "sleep_ms"), [(2, 40), (8, 30)])
def test_the_bubble_of_a_pipeline_is_that_of_its_formula(microbatches, sleep_ms, run_topout, tmp_path):
    expected = bubble_share("GPipe", 2, microbatches)
    errors = []
    # two more when the first was disturbed: the recorder's error is asked for, not the machine's
    while not errors or (min(errors) > POINTS and len(errors) < 3):
        analysis, digests = run_script(
            run_topout, tmp_path / str(len(errors)), SCRIPTS / "pipelined.py", "GPipe", microbatches, sleep_ms
        )
        found = analysis["measures"]["pipeline"]
        assert (found["num_stages"], found["num_microbatches"]) == (2, microbatches)
        errors.append(abs(found["schedule_bubble_share"] - expected))
    assert min(errors) <= POINTS, errors
    assert analysis["measures"]["shares"]["forward"] < 0.4, "a bubble was taken for forward"
    if microbatches == 2:
        assert analysis["verdict"]["name"] == "pipeline-bubble"
        assert "PP01" in [finding["code"] for finding in analysis["findings"]]
        # sleeping changes no number, so the same training without the recorder need not sleep
        assert digests == digests_without(run_topout, tmp_path / "plain", SCRIPTS / "pipelined.py", "GPipe", 2, 0)


def test_a_slow_rank_shows_as_waiting_of_its_tensor_parallel_peer(run_topout, tmp_path):
    analysis, digests = run_script(run_topout, tmp_path / "runs", SCRIPTS / "tensor_parallel.py", 60)
    measures, verdict = analysis["measures"], analysis["verdict"]
    assert (verdict["name"], verdict["ranks"]) == ("tensor-parallel", [1])
    assert measures["ranks"][0]["shares"]["tensor"] > 0.5
    assert measures["ranks"][1]["shares"]["tensor"] < 0.3
    peers = measures["tensor_parallel"]
    assert peers["wait_share"] > peers["transfer_share"]
    assert peers["num_ranks"] == 2
    # two blocks forward; backward adds one, since the first block's input needs no gradient
    assert peers["num_collectives_per_step"] == pytest.approx(3.0)
    # four products of 8 samples with 16 x 32 weights, forward and twice in backward: each rank does half of it
    assert measures["compute"]["flops_per_step"] == 3 * 4 * 2 * 8 * 16 * 32
    assert digests == digests_without(run_topout, tmp_path / "plain", SCRIPTS / "tensor_parallel.py", 0)


def test_gathering_sharded_parameters_waits_for_a_slow_rank_and_is_no_tensor_parallelism(run_topout, tmp_path):
    done = run_topout(["run", "-n", 2, "--runs", tmp_path / "runs", SCRIPTS / "sharded.py", 200])
    assert done.code == 0, done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    measures = json.loads((run / "analysis.json").read_text())["measures"]
    first, second = (rank["shares"] for rank in measures["ranks"])
    assert first["wait"] > 0.2
    assert first["wait"] > 2 * second["wait"]
    assert measures["tensor_parallel"] is None
