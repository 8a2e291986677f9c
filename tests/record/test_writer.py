"""Events reach the file in whole blocks, and a file that cannot be written ends the recording, not the training."""

import json
import os
import threading

import pytest

from topout.analyze.measure import measure_run
from topout.record.recorder import Recorder
from topout.record.settings import Settings
from topout.record.status import StatusLine
from topout.record.writer import EventWriter
from topout.schema.block import HEADER, MAGIC, BlockType
from topout.schema.event import Kind, pack_code
from topout.schema.run_folder import RunFolder
from topout.trace.readers.topout import read_rank


def blocks(data: bytes):
    at = 0
    while at < len(data):
        magic, _, block_type, size, _ = HEADER.unpack_from(data, at)
        assert magic == MAGIC
        yield BlockType(block_type), data[at + HEADER.size : at + HEADER.size + size]
        at += HEADER.size + size


def test_rows_are_written_as_columns_after_the_names_they_use(tmp_path):
    writer = EventWriter(tmp_path / "a.events", on_failure=print)
    writer.append(pack_code(Kind.SPAN, writer.name_id("load")), 10, 5, -1, -1)
    writer.append(pack_code(Kind.STEP), 20, 7, -1, 0)
    writer.close()
    (names_type, names), (rows_type, rows) = blocks((tmp_path / "a.events").read_bytes())
    assert (names_type, names) == (BlockType.NAMES, b'[1, "load"]')
    assert rows_type is BlockType.ROWS
    values = memoryview(rows).cast("q").tolist()
    assert values == [11 + (1 << 16), 1, 10, 20, 5, 7, -1, -1, -1, 0]


def test_a_fact_that_comes_while_another_thread_writes_is_kept(tmp_path):
    class Slow:
        def __str__(self):
            writer.flush()
            return "late"

    writer = EventWriter(tmp_path / "a.events", on_failure=print)
    writer.facts({"arrives": Slow()})
    writer.close()
    assert list(blocks((tmp_path / "a.events").read_bytes())) == [(BlockType.FACTS, b'{"arrives": "late"}')]


def test_names_that_two_threads_bring_at_once_are_two(tmp_path):
    class Interrupted(dict):
        def __len__(self):
            num_names = super().__len__()
            if not others:
                others.append(threading.Thread(target=writer.name_id, args=("backward",)))
                others[0].start()
                others[0].join(0.3)
            return num_names

    others: list[threading.Thread] = []
    writer = EventWriter(tmp_path / "a.events", on_failure=print)
    writer._names = Interrupted()
    writer.name_id("load")
    others[0].join()
    assert dict(writer._names) == {"load": 1, "backward": 2}


def test_a_full_disk_is_told_once_and_swallowed(tmp_path):
    said: list[str] = []
    full = tmp_path / "full.events"
    os.symlink("/dev/full", full)
    writer = EventWriter(full, on_failure=said.append)
    writer.append(1, 2, 3, 4, 5)
    writer.flush()
    writer.append(1, 2, 3, 4, 5)
    writer.close()
    assert len(said) == 1
    assert "No space left on device" in said[0]
    assert not writer.is_open


def test_a_folder_that_is_not_there_is_told_and_swallowed(tmp_path):
    said: list[str] = []
    writer = EventWriter(tmp_path / "missing" / "a.events", on_failure=said.append)
    writer.append(1, 2, 3, 4, 5)
    writer.close()
    assert len(said) == 1
    assert "No such file or directory" in said[0]


def fill(writer: EventWriter, num_rows: int) -> None:
    for number in range(num_rows):
        writer.append(pack_code(Kind.STEP), 10 * number, 7, -1, number)
        writer.flush()


def steps_in(data: bytes) -> list[int]:
    payloads = [payload for kind, payload in blocks(data) if kind is BlockType.ROWS]
    return [step for payload in payloads for step in memoryview(payload).cast("q").tolist()[-len(payload) // 40 :]]


def test_a_recording_that_reaches_its_limit_goes_on_with_its_end(tmp_path):
    said: list[str] = []
    path = tmp_path / "a.events"
    writer = EventWriter(path, on_failure=pytest.fail, limit_bytes=16_000, on_limit=said.append)
    writer.facts({"rank": 3, "ended": False})
    writer.name_id("load")
    fill(writer, 1000)
    writer.facts({"ended": True})
    writer.close()
    data = path.read_bytes()
    assert [item.name for item in tmp_path.iterdir()] == ["a.events"]
    assert len(data) < 16_100
    steps = steps_in(data)
    assert len(steps) > 1000 // (HEADER.size + 40)
    assert steps == list(range(1000 - len(steps), 1000))
    assert (BlockType.NAMES, b'[1, "load"]') in list(blocks(data))
    facts: dict[str, object] = {}
    for kind, payload in blocks(data):
        facts |= json.loads(payload) if kind is BlockType.FACTS else {}
    assert facts == {"rank": 3, "ended": True}
    assert set(said) == {"the recording reached its limit of 0 MiB: its beginning is left out"}


def test_a_recording_that_cannot_begin_anew_stops_at_its_limit(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    said: list[str] = []
    writer = EventWriter(tmp_path / "a.events", on_failure=said.append, limit_bytes=100)
    monkeypatch.setattr(os, "replace", fail)
    fill(writer, 3)
    writer.close()
    assert [item.name for item in tmp_path.iterdir()] == ["a.events"]
    assert steps_in((tmp_path / "a.events").read_bytes()) == [0, 1]
    assert said == ["recording stopped at its limit of 0 MiB; later steps are not in it"]
    assert not writer.is_open


def test_a_rank_that_reached_the_limit_goes_on_and_tells_it_and_how_it_ended(tmp_path):
    recorder = Recorder(Settings(run=str(tmp_path)), StatusLine(None))
    recorder._writer._limit_bytes = 10_000
    for number in range(1000):
        recorder.close_step(pack_code(Kind.STEP), 10 * number)
        recorder._flush()
    recorder.finish()
    table = read_rank(RunFolder(tmp_path), 0)
    steps = table.ref[table.rows(Kind.STEP)].tolist()
    assert steps == list(range(steps[0], 1000)) and steps[0] > 0
    assert table.facts["ended"] and table.facts["peak_resident_bytes"] > 0
    assert table.facts["notes"] == ["the recording reached its limit of 0 MiB: its beginning is left out"]
    assert "file_opens" in table.counters


def test_what_may_take_long_at_the_end_finds_the_recording_written(tmp_path):
    recorder = Recorder(Settings(run=str(tmp_path)), StatusLine(None))
    found = []
    recorder.at_last.append(lambda: found.append(read_rank(RunFolder(tmp_path), 0)))
    recorder.at_last.append(lambda: recorder.fact(profiled_steps=[2, 4]))
    recorder.at_finish.append(lambda: recorder.counter("arrivals", 7))
    recorder.finish()
    assert found[0].facts["ended"] and "arrivals" in found[0].counters
    assert read_rank(RunFolder(tmp_path), 0).facts["profiled_steps"] == [2, 4]


def write_rank(folder: RunFolder, rank: int, *, num_steps: int) -> None:
    """Steps of 10 ms, of which the last 100 collectives are remembered; rank 0 computes for 2 ms longer, and saves."""
    writer = EventWriter(folder.events(rank), on_failure=pytest.fail, limit_bytes=256 << 10)
    writer.facts({"rank": rank, "host": "n1", "clock_pairs": [[0, 10**18], [10**12, 10**18 + 10**12]]})
    own_ns = 7_000_000 if rank == 0 else 5_000_000
    for step in range(num_steps):
        start = 10**9 + step * 10_000_000
        writer.append(pack_code(Kind.INPUT), start, 500_000, 8, 0)
        writer.append(pack_code(Kind.BACKWARD), start + 1_000_000, 8_500_000, -1, -1)
        if rank == 0:
            writer.append(pack_code(Kind.CHECKPOINT), start + 9_600_000, 100_000, -1, -1)
        writer.append(pack_code(Kind.STEP), start, 10_000_000, -1, step)
        writer.flush()
    arrival = pack_code(Kind.ARRIVAL, writer.name_id("all_reduce"))
    for step in range(num_steps - 100, num_steps):
        writer.append(arrival, 10**9 + step * 10_000_000 + own_ns, 0, 1000, step + 1)
    writer.facts({"ended": True, "backend": "gloo"})
    writer.close()


def test_ranks_that_reached_their_limits_at_different_steps_are_judged_by_the_end_of_the_run(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.run_json.write_text('{"version": 1, "status": "finished", "ranks": [{"rank": 0}, {"rank": 1}]}')
    for rank in range(2):
        write_rank(folder, rank, num_steps=2000)
        assert folder.events(rank).stat().st_size < 260 << 10
    measures, verdict = measure_run(folder)
    assert (measures.window.first_step, measures.window.last_step) == (1901, 1999)
    assert measures.ranks[1].shares["wait"] == pytest.approx(0.2, abs=0.01)
    assert verdict is not None
