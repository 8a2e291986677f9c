"""Loops with a planted fault come back with the right verdict, and with the share that their own stamps give."""

import json
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, RunTopout
from tests.truth.throttled import throttled_loopback

SCRIPT = REPOSITORY / "tests" / "scripts" / "planted.py"
TOLERANCE = 0.02


@dataclass(frozen=True)
class Planted:
    """A fault, the verdict it must give, and where its share must be found."""

    verdict: str
    num_ranks: int = 1
    phase: str | None = None
    found_in: tuple[str, ...] = ()
    found_at: int = 0
    """Rank in whose shares the planted time must stand."""
    planted_at: int = 0
    """Rank that planted it."""
    culprit: int | None = None


FAULTS = {
    "decode": Planted("input-decode", found_in=("input",)),
    "backward-straggler": Planted(
        "load-imbalance", num_ranks=2, phase="backward", found_in=("wait",), planted_at=1, culprit=1
    ),
    "serial-evaluation": Planted("serial-phase", num_ranks=2, phase="evaluation", found_in=("evaluation",), culprit=0),
    "checkpoint": Planted("serial-phase", phase="checkpoint", found_in=("checkpoint",)),
    "host": Planted("host", found_in=("other",)),
}

NAMED = {  # fault -> verdict, phase, late ranks, flags; shares are compared above, here only what is named
    "small-files": ("input-iops", "input", None, ("-n", 1)),
    "large-file": ("input-bandwidth", "input", None, ("-n", 1)),
    "input-straggler": ("load-imbalance", "input", [1], ("-n", 2)),
    "latency": ("communication-latency", "transfer", None, ("-n", 2)),
    "compute": ("compute", None, None, ("-n", 1)),
    "elementwise": ("memory-bandwidth", None, None, ("-n", 1, "--profile", "20-24")),
}


@pytest.mark.parametrize("fault", list(NAMED))
def test_a_planted_fault_is_named(fault, run_topout, tmp_path):
    verdict_name, phase, ranks, flags = NAMED[fault]
    done = run_topout(["run", *flags, "--runs", tmp_path / "runs", SCRIPT, fault, tmp_path / "own"])
    assert done.code == 0, done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    verdict = json.loads((run / "analysis.json").read_text())["verdict"]
    assert verdict["name"] == verdict_name, verdict
    assert phase is None or verdict["phase"] == phase, verdict
    assert ranks is None or verdict["ranks"] == ranks, verdict


def test_running_out_of_memory_is_a_verdict_and_the_traceback_still_comes_last(run_topout, tmp_path):
    done = run_topout(["run", "-n", 1, "--runs", tmp_path / "runs", SCRIPT, "too-large", tmp_path / "own"])
    assert done.code == 1
    # torch's builds for x86 and ARM say it in their own words
    assert re.search("can't allocate memory|not enough memory", done.stderr.splitlines()[-1])
    (run,) = (tmp_path / "runs").iterdir()
    analysis = json.loads((run / "analysis.json").read_text())
    assert analysis["verdict"]["name"] == "memory-size"
    assert analysis["measures"]["memory"]["requested_bytes"] > 1 << 40
    assert "ME02" in [finding["code"] for finding in analysis["findings"]]


@pytest.mark.lab
def test_a_throttled_collective_is_named_and_its_share_recovered(run_topout, tmp_path):
    errors = []
    with throttled_loopback("topout-throttled") as inside:
        for number in range(3):
            folder = tmp_path / str(number)
            folder.mkdir()
            planted = Planted("communication-bandwidth", num_ranks=2, found_in=("wait", "transfer"))
            analysis, found, truth = run_once(run_topout, "bandwidth", planted, folder, before=inside)
            assert analysis["verdict"]["name"] == planted.verdict, analysis["verdict"]
            assert truth > 0.3, "the wire was not slow"
            errors.append(abs(found - truth))
    assert statistics.median(errors) <= TOLERANCE, errors


def run_once(
    run_topout: RunTopout, fault: str, planted: Planted, folder: Path, before: Sequence[str] = ()
) -> tuple[dict, float, float]:
    """(analysis, share found, share planted) of one run."""
    words = ["run", "-n", planted.num_ranks, "--runs", folder / "runs", SCRIPT, fault, folder / "own"]
    done = run_topout(words, before=before)
    assert done.code == 0, done.stderr
    (run,) = (folder / "runs").iterdir()
    analysis = json.loads((run / "analysis.json").read_text())
    window = analysis["measures"]["window"]
    stamps = json.loads((folder / "own" / f"stamps-{planted.planted_at}.json").read_text())
    steady = stamps[window["first_step"] : window["last_step"] + 1]
    share = sum(step["planted_s"] for step in steady) / sum(step["step_s"] for step in steady)
    shares = analysis["measures"]["ranks"][planted.found_at]["shares"]
    return analysis, sum(shares[phase] for phase in planted.found_in), share


@pytest.mark.parametrize("fault", list(FAULTS))
def test_a_planted_fault_is_named_and_its_share_recovered(fault, run_topout, tmp_path):
    planted = FAULTS[fault]
    errors = []
    # two more when three were disturbed: the recorder's error is asked for, not the machine's
    while len(errors) < 3 or (statistics.median(errors) > TOLERANCE and len(errors) < 5):
        folder = tmp_path / str(len(errors))
        folder.mkdir()
        analysis, found, truth = run_once(run_topout, fault, planted, folder)
        verdict = analysis["verdict"]
        assert verdict["name"] == planted.verdict, verdict
        assert planted.phase is None or verdict["phase"] == planted.phase, verdict
        assert planted.culprit is None or verdict["ranks"] == [planted.culprit], verdict
        assert truth > 0.1, "the fault was not planted"
        errors.append(abs(found - truth))
    assert statistics.median(errors) <= TOLERANCE, errors
