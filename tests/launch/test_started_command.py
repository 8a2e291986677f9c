"""A command beside the launcher: found on the path, apart from the terminal, ended with what it started."""

import fcntl
import os
import resource
import signal
import subprocess
import sys
import time

import pytest

from topout.launch.started_command import StartedCommand


@pytest.fixture(params=["at once", "by subprocess"])
def start(request, monkeypatch):
    if request.param == "by subprocess":

        def without_sessions(*_, **__):
            raise NotImplementedError

        monkeypatch.setattr(os, "posix_spawnp", without_sessions)
    started = []

    def begin(*words: str, env: dict[str, str] | None = None) -> StartedCommand:
        started.append(StartedCommand(words, os.environ if env is None else env))
        return started[-1]

    yield begin
    for command in started:
        command.kill()
        command.close()


def test_what_it_says_and_how_it_ends_is_known(start):
    command = start("sh", "-c", "echo to one; echo to the other >&2; exit 7")
    command.await_end(60)
    assert (command.poll(), command.said()) == (7, b"to one\nto the other\n")


def test_a_signal_that_ended_it_is_told(start):
    command = start("sh", "-c", "kill -TERM $$")
    command.await_end(60)
    assert command.poll() == -signal.SIGTERM


def test_a_command_that_is_not_there_is_an_error_with_words(start):
    with pytest.raises(FileNotFoundError) as caught:
        start("no-such-command-anywhere")
    assert caught.value.strerror == "No such file or directory"


def test_one_that_may_not_be_started_is_an_error_too(start, tmp_path):
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    with pytest.raises(PermissionError):
        start(str(tmp_path / "tool"))


def test_it_has_its_variables_and_a_session_and_nothing_to_read(start):
    code = "import os, sys; print(os.environ['A'], os.getsid(0) == os.getpid(), repr(sys.stdin.read()))"
    command = start(sys.executable, "-c", code, env={**os.environ, "A": "b"})
    command.await_end(60)
    assert command.said() == b"b True ''\n"


def test_no_file_of_the_launcher_stays_open_in_it(start, tmp_path):
    with open(tmp_path / "given", "w") as given:
        os.set_inheritable(given.fileno(), True)
        command = start("ls", "/proc/self/fd")
        command.await_end(60)
        # the last is that of the listing
        assert command.said().split() == [b"0", b"1", b"2", b"3"]


def test_a_file_beyond_a_limit_that_came_later_is_no_error(start, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open(tmp_path / "given", "w") as given:
        high = fcntl.fcntl(given.fileno(), fcntl.F_DUPFD, soft - 1)
        try:
            os.set_inheritable(high, True)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
            command = start("true")
            command.await_end(60)
            assert command.poll() == 0
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            os.close(high)


def test_signals_that_python_ignores_end_it(start):
    command = start("sh", "-c", "kill -PIPE $$")
    command.await_end(60)
    assert command.poll() == -signal.SIGPIPE


def test_who_does_not_end_is_ended_with_its_children(start, tmp_path):
    command = start("sh", "-c", f"sleep 600 & echo $! >{tmp_path}/child; wait")
    while not (tmp_path / "child").exists() or not (tmp_path / "child").read_text().strip():
        time.sleep(0.01)
    child = int((tmp_path / "child").read_text())
    command.await_end(0.1)
    assert command.poll() is None
    command.kill()
    assert command.poll() == -signal.SIGKILL
    while (
        os.path.exists(f"/proc/{child}") and "Z" not in open(f"/proc/{child}/stat").read().rpartition(")")[2].split()[0]
    ):
        time.sleep(0.01)


def test_who_is_asked_to_end_may_end_others_first(start, tmp_path):
    code = f"trap 'touch {tmp_path}/ended; exit 5' TERM; touch {tmp_path}/ready; while :; do sleep 0.01; done"
    command = start("sh", "-c", code)
    while not (tmp_path / "ready").exists():
        time.sleep(0.01)
    command.terminate()
    command.await_end(60)
    assert command.poll() == 5
    assert (tmp_path / "ended").exists()


def test_on_an_old_kernel_its_end_is_looked_for(start, monkeypatch):
    monkeypatch.delattr(os, "pidfd_open")
    command = start("sh", "-c", "sleep 0.2; exit 3")
    command.await_end(60)
    assert command.poll() == 3


def _is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_what_it_says_is_heard_where_the_launcher_has_no_stdin():
    code = (
        "import os; os.close(0)\n"
        "from topout.launch.started_command import StartedCommand\n"
        "command = StartedCommand(['sh', '-c', 'echo heard; cat'], os.environ)\n"
        "command.await_end(60)\n"
        "print(command.poll(), command.said())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "0 b'heard\\n'\n"
