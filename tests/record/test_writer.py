"""Events reach the file in whole blocks, and a file that cannot be written ends the recording, not the training."""

import os
import threading

from topout.record.writer import EventWriter
from topout.schema.block import HEADER, MAGIC, BlockType
from topout.schema.event import Kind, pack_code


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


def test_a_recording_stops_at_its_limit(tmp_path):
    said: list[str] = []
    writer = EventWriter(tmp_path / "a.events", on_failure=said.append, limit_bytes=100)
    for _ in range(3):
        writer.append(1, 2, 3, 4, 5)
        writer.flush()
    size = (tmp_path / "a.events").stat().st_size
    writer.append(1, 2, 3, 4, 5)
    writer.close()
    assert (tmp_path / "a.events").stat().st_size == size == 2 * (HEADER.size + 40)
    assert "limit" in said[0]
