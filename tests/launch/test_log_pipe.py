"""A rank's output is taken off its pipe whatever happens to the disk or the terminal."""

import os
from functools import partial

import pytest

from topout.launch.log_pipe import LogPipe
from topout.launch.terminal import Terminal


def shown_on(fd: int):
    return partial(Terminal(out_fd=fd).show, 1)


@pytest.fixture
def pipe():
    read_fd, write_fd = os.pipe()
    os.set_blocking(read_fd, False)
    yield read_fd, write_fd
    for fd in (read_fd, write_fd):
        try:
            os.close(fd)
        except OSError:
            pass


def test_output_reaches_file_and_terminal(pipe, tmp_path):
    with open(tmp_path / "terminal", "wb") as terminal:
        log = LogPipe(pipe[0], tmp_path / "rank.out", show=shown_on(terminal.fileno()), on_failure=pytest.fail)
        os.write(pipe[1], b"step 1\n")
        assert log.read()
        log.close()
    assert (tmp_path / "rank.out").read_bytes() == (tmp_path / "terminal").read_bytes() == b"step 1\n"


def test_what_is_missing_from_a_full_disk_is_said_once(pipe, tmp_path):
    with open("/dev/full", "wb") as full, open(tmp_path / "talk", "wb") as talk:
        terminal = Terminal(out_fd=full.fileno(), err_fd=talk.fileno())
        for _ in range(3):
            terminal.show(1, b"step 1\n")
    said = (tmp_path / "talk").read_text()
    assert (
        said == "topout: stdout takes nothing more (No space left on device); what rank 0 prints is in its log alone\n"
    )


def test_nothing_is_said_of_a_reader_that_has_gone(pipe, tmp_path):
    os.close(pipe[0])
    with open(tmp_path / "talk", "wb") as talk:
        Terminal(out_fd=pipe[1], err_fd=talk.fileno()).show(1, b"step 1\n")
    assert (tmp_path / "talk").read_bytes() == b""


def test_a_full_disk_is_told_and_the_pipe_still_emptied(pipe, tmp_path):
    (tmp_path / "full").symlink_to("/dev/full")
    failures = []
    log = LogPipe(pipe[0], tmp_path / "full", on_failure=failures.append)
    for number in range(3):
        os.write(pipe[1], b"line %d\n" % number)
        assert log.read()
    assert [error.strerror for error in failures] == ["No space left on device"] * 3
    assert log.tail == "line 0\nline 1\nline 2\n"


def test_a_terminal_that_went_away_is_let_go(pipe, tmp_path):
    gone_read, gone_write = os.pipe()
    os.close(gone_read)
    log = LogPipe(pipe[0], tmp_path / "rank.out", show=shown_on(gone_write), on_failure=pytest.fail)
    for _ in range(2):
        os.write(pipe[1], b"x")
        assert log.read()
    os.close(gone_write)
    assert (tmp_path / "rank.out").read_bytes() == b"xx"


def test_the_end_is_seen_and_only_the_last_words_are_kept(pipe, tmp_path):
    log = LogPipe(pipe[0], None, on_failure=pytest.fail)
    os.write(pipe[1], b"a" * 30_000 + b"last")
    os.close(pipe[1])
    assert log.read()
    assert not log.read()
    assert len(log.tail) == 1 << 14
    assert log.tail.endswith("last")
