"""Clocks that are apart are found to be apart by as much, in a time namespace of Linux."""

import json
from pathlib import Path

import pytest

from tests.preflight.company import run_company
from topout.preflight.facts import ClockReading

pytestmark = pytest.mark.alone

SCRIPT = """
import json, time
from dataclasses import asdict
from topout.preflight.probes.clocks import read_clocks
from topout.preflight.probes.meeting import meet
with meet(deadline_s=time.monotonic() + 60) as meeting:
    found = [*read_clocks(meeting, ["n1", "n2"]), *read_clocks(meeting, ["n1", "n2"])]
    print(json.dumps([asdict(reading) for reading in found]))
"""


def readings(folder: Path, before: dict[int, list[str]]) -> list[ClockReading]:
    first, second = (json.loads(out) for out in run_company(folder, 2, SCRIPT, before))
    assert second == []
    return [ClockReading(**entry) for entry in first]


def test_hosts_of_one_clock_agree_within_the_uncertainty(tmp_path: Path) -> None:
    for reading in readings(tmp_path, {}):
        assert reading.host == "n2"
        assert 0 < reading.uncertainty_s < 1
        assert abs(reading.monotonic_offset_s) <= reading.uncertainty_s
        # two clocks are read one after the other, with a moment between them
        assert abs(reading.realtime_offset_s) <= reading.uncertainty_s + 0.01


@pytest.mark.lab
@pytest.mark.parametrize("offset_s", [3, 4000])
def test_a_monotonic_clock_that_is_ahead_is_found_in_a_time_namespace(tmp_path: Path, offset_s: int) -> None:
    ahead = ["unshare", "--time", f"--monotonic={offset_s}", f"--boottime={offset_s}"]
    for reading in readings(tmp_path, {1: ahead}):
        assert reading.monotonic_offset_s == pytest.approx(offset_s, abs=reading.uncertainty_s + 1e-6)
        assert abs(reading.realtime_offset_s) <= reading.uncertainty_s + 0.01
