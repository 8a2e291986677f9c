"""A descriptor that the script closes, or whose number it gives to a file of its own, is let go of without harm."""

import errno
import json
import os

import pytest

from topout.record.status import StatusLine
from topout.record.writer import EventWriter
from topout.schema.block import HEADER


def fd_of(held) -> int:
    return held._fd


@pytest.fixture
def writer(tmp_path):
    said: list[str] = []
    made = EventWriter(tmp_path / "a.events", on_failure=said.append)
    made.said = said
    made.append(1, 2, 3, 4, 5)
    made.flush()
    return made


def test_the_scripts_file_is_left_alone_and_the_recording_goes_on(writer, tmp_path):
    number = fd_of(writer._file)
    os.close(number)
    with open(tmp_path / "mine", "w") as mine:
        assert mine.fileno() == number
        for _ in range(2):
            writer.append(1, 2, 3, 4, 5)
            writer.flush()
        writer.close()
        mine.write("mine alone")
    assert (tmp_path / "mine").read_text() == "mine alone"
    assert (tmp_path / "a.events").stat().st_size == 3 * (HEADER.size + 40)
    assert writer.said == []


def test_a_folder_that_went_with_the_descriptor_ends_the_recording_once(writer, tmp_path):
    os.close(fd_of(writer._file))
    (tmp_path / "a.events").unlink()
    tmp_path.rename(tmp_path.with_name("elsewhere"))
    for _ in range(2):
        writer.append(1, 2, 3, 4, 5)
        writer.flush()
    writer.close()
    tmp_path.mkdir()
    assert len(writer.said) == 1 and "No such file or directory" in writer.said[0]
    assert not writer.is_open


def test_a_disk_that_fails_again_on_closing_is_told_once(writer, monkeypatch):
    def over_quota(*_):
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    with monkeypatch.context() as context:
        context.setattr(os, "write", over_quota)
        context.setattr(os, "close", over_quota)
        for _ in range(2):
            writer.append(1, 2, 3, 4, 5)
            writer.flush()
    writer.close()
    assert len(writer.said) == 1 and "Disk quota exceeded" in writer.said[0]
    assert not writer.is_open


def test_nobody_waits_for_a_thread_that_writes_already_and_no_row_is_lost(writer, tmp_path):
    writer.append(1, 2, 3, 4, 5)
    with writer._flushing:
        writer.flush()
        assert (tmp_path / "a.events").stat().st_size == HEADER.size + 40
    writer.close()
    assert (tmp_path / "a.events").stat().st_size == 2 * (HEADER.size + 40)


def test_messages_to_the_launcher_do_not_reach_the_scripts_file(tmp_path):
    heard, told = os.pipe()
    status = StatusLine(told)
    status.send("note", text="a")
    os.close(told)
    with open(tmp_path / "mine", "w") as mine:
        assert mine.fileno() == told
        status.send("note", text="b")
    assert (tmp_path / "mine").read_text() == ""
    with open(heard) as lines:
        assert [json.loads(line)["text"] for line in lines] == ["a"]
