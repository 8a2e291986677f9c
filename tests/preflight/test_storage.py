"""File systems are tried out in a folder of our own, which is gone afterwards."""

import json
import os
import time
from pathlib import Path

import pytest

from tests.preflight.company import run_company
from topout.preflight.probes.meeting import Meeting
from topout.preflight.probes.storage import places_of, try_out


def alone() -> Meeting:
    return Meeting(number=0, size=1, deadline_s=time.monotonic() + 60)


def test_a_folder_is_named_and_measured_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("stays")
    place = try_out("data", str(tmp_path), alone())
    assert place.problem is None and place.is_writable
    assert place.file_system is not None and place.free_bytes
    rates = (place.opens_per_s, place.stats_per_s, place.read_bytes_per_s, place.write_bytes_per_s)
    assert all(rate and rate > 0 for rate in rates)
    assert place.method == "files just written here: caches help"
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_folder_that_is_not_there_is_a_finding(tmp_path: Path) -> None:
    place = try_out("data", str(tmp_path / "nowhere"), alone())
    assert place.problem == "No such file or directory"
    assert place.opens_per_s is None and place.free_bytes is None


def test_a_single_file_of_data_is_read_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "train.tar").write_bytes(os.urandom(1 << 20))
    place = try_out("data", str(tmp_path / "train.tar"), alone())
    assert place.method == "1 files found there"
    assert place.read_bytes_per_s and place.write_bytes_per_s is None
    assert [path.name for path in tmp_path.iterdir()] == ["train.tar"]


def test_hosts_read_what_their_neighbour_wrote(tmp_path: Path) -> None:
    script = f"""
import json, time
from dataclasses import asdict
from topout.preflight.probes.meeting import meet
from topout.preflight.probes.storage import try_out
with meet(deadline_s=time.monotonic() + 60) as meeting:
    print(json.dumps(asdict(try_out("data", {str(tmp_path)!r}, meeting))))
"""
    places = [json.loads(out) for out in run_company(tmp_path, 2, script)]
    assert [place["method"] for place in places] == ["files that the neighbour wrote"] * 2
    assert [place["num_hosts"] for place in places] == [2, 2]
    assert all(place["opens_per_s"] > 0 for place in places)
    assert list(tmp_path.iterdir()) == []


def test_the_places_of_a_training_are_looked_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", "/local")
    purposes = dict(places_of("/data", tmp_path))
    assert purposes == {
        "data": "/data",
        "run folder": str(tmp_path),
        "temporary folder": "/local",
        "shared memory": "/dev/shm",
    }
