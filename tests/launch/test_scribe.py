"""What is written by a thread of its own: in order, all of it, and nobody waits for it before there is too much."""

import os
import threading
from functools import partial

import pytest

from tests.launch.jobs import start, wait_for
from topout.launch import scribe as module
from topout.launch.log_pipe import LogPipe
from topout.launch.scribe import Scribe
from topout.launch.terminal import Terminal


@pytest.fixture
def scribe():
    made = Scribe()
    made.start()
    yield made
    made.finish()


@pytest.fixture
def gate():
    """A file system that does not answer until it is set."""
    made = threading.Event()
    yield made
    made.set()


def test_whoever_writes_does_not_wait_and_order_is_kept(scribe: Scribe, gate: threading.Event) -> None:
    written: list[int] = []
    scribe.do(lambda: bool(gate.wait()), 1)
    for number in range(100):
        scribe.do(partial(written.append, number), 1)
    assert written == []
    gate.set()
    scribe.finish()
    assert written == list(range(100))


def test_there_is_no_thread_before_it_starts_and_after_it_has_finished() -> None:
    """Ranks are forked then."""
    wrote_in: list[int] = []
    scribe = Scribe()
    for _ in range(2):
        scribe.do(lambda: wrote_in.append(threading.get_ident()), 1)
        scribe.start()
        scribe.do(lambda: wrote_in.append(threading.get_ident()), 1)
        scribe.finish()
        scribe.do(lambda: wrote_in.append(threading.get_ident()), 1)
    own = threading.get_ident()
    assert [ident == own for ident in wrote_in] == [True, False, True] * 2
    assert not any(thread.name == "topout-scribe" for thread in threading.enumerate())


def test_until_all_is_written_others_hear_that_it_lives(
    scribe: Scribe, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BEAT_S", 0.01)
    beats: list[int] = []

    def beat() -> bool:
        beats.append(1)
        if len(beats) == 3:
            gate.set()
        return True

    scribe.do(lambda: bool(gate.wait()), 1)
    assert scribe.finish(beat)
    assert len(beats) >= 3


def test_what_is_not_to_be_waited_for_is_left_to_itself(
    scribe: Scribe, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BEAT_S", 0.01)
    scribe.do(lambda: bool(gate.wait()), 1)
    assert not scribe.finish(lambda: False)
    written: list[int] = []
    scribe.do(lambda: written.append(1), 1)
    assert written == [1]


def test_who_has_too_much_to_write_waits(
    scribe: Scribe, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_BYTES", 10)
    scribe.do(lambda: bool(gate.wait()), 10)
    has_gone_on = threading.Event()

    def write_more() -> None:
        scribe.do(lambda: None, 1)
        has_gone_on.set()

    threading.Thread(target=write_more, daemon=True).start()
    assert not has_gone_on.wait(0.2)
    gate.set()
    assert has_gone_on.wait(30)


def test_a_log_whose_file_system_does_not_answer_is_read_all_the_same(tmp_path, scribe: Scribe) -> None:
    """A pipe that is full stands for it."""
    os.mkfifo(tmp_path / "rank.out")
    slow = os.open(tmp_path / "rank.out", os.O_RDONLY | os.O_NONBLOCK)
    read_fd, write_fd = os.pipe()
    os.set_blocking(read_fd, False)
    log = LogPipe(read_fd, tmp_path / "rank.out", on_failure=pytest.fail, scribe=scribe)
    for number in range(40):
        os.write(write_fd, bytes([number]) * 8000)
        assert log.read()
    os.set_blocking(slow, True)
    arrived = b""
    while len(arrived) < 320_000:
        arrived += os.read(slow, 1 << 16)
    assert arrived == b"".join(bytes([number]) * 8000 for number in range(40))
    scribe.finish()
    log.close()
    for fd in (slow, read_fd, write_fd):
        os.close(fd)


def test_what_the_launcher_says_comes_where_it_was_said(scribe: Scribe, capfd: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(out_fd=2, scribe=scribe)
    for number in range(3):
        terminal.show(1, b"rank %d\n" % number)
        terminal.say(f"topout {number}")
    scribe.finish()
    assert capfd.readouterr().err == "rank 0\ntopout 0\nrank 1\ntopout 1\nrank 2\ntopout 2\n"


def test_a_script_goes_on_while_nobody_reads_what_it_prints(tmp_path) -> None:
    script = "import pathlib\nfor number in range(20_000):\n    print(number)\npathlib.Path('trained').touch()\n"
    process = start(tmp_path, script, "-n", "1")
    assert wait_for((tmp_path / "trained").exists)
    stdout, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert stdout.split() == [str(number) for number in range(20_000)]
    (run,) = (tmp_path / "topout-runs").iterdir()
    assert (run / "logs/rank-00000.out").read_text() == stdout
