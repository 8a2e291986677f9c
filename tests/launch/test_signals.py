"""Signals that come before a job has ranks, and those that come twice."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.launch.jobs import ANNOUNCE, await_pid, is_running, start, state, wait_for
from topout.launch.signals import LauncherSignals
from topout.launch.stop_agreement import catches

pytestmark = pytest.mark.alone

DEAF = """
import signal
signal.signal(2, lambda number, frame: announce("told-" + os.environ["RANK"]))
signal.signal(15, signal.SIG_IGN)
"""
"""Put before `ANNOUNCE`."""


def task(folder: Path, rank: int, script: str, *options: str) -> "subprocess.Popen[str]":
    """One of two, as MPICH's mpirun starts them."""
    local = {"MPI_LOCALRANKID": str(rank), "MPI_LOCALNRANKS": "2", "I_MPI_HYDRA_UUID": str(folder)}
    return start(folder, script, *options, PMI_RANK=str(rank), PMI_SIZE="2", **local)


def heeds_signals(launcher: "subprocess.Popen[str]") -> bool:
    return catches(launcher.pid, signal.SIGUSR2)  # its handler is set last


@pytest.fixture
def waiting(tmp_path, heeds_hangups):
    """The first task of a job whose second has not come yet."""
    first = task(tmp_path, 0, ANNOUNCE)
    assert wait_for(lambda: heeds_signals(first))
    yield first
    first.kill()
    first.communicate()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_launcher_that_waits_for_others_ends_as_the_signal_says(waiting, number, code):
    waiting.send_signal(number)
    _, err = waiting.communicate(timeout=20)
    assert waiting.returncode == code
    assert "Traceback" not in err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_launcher_that_waits_for_its_head_ends_as_well(tmp_path, number, code):
    second = task(tmp_path, 1, ANNOUNCE)
    assert wait_for(lambda: heeds_signals(second))
    second.send_signal(number)
    second.communicate(timeout=10)
    assert second.returncode == code


def test_time_in_which_it_was_stopped_makes_nobody_late(tmp_path):
    first = task(tmp_path, 0, ANNOUNCE, "--start-timeout", "2")
    assert wait_for(lambda: heeds_signals(first))
    first.send_signal(signal.SIGTSTP)
    assert wait_for(lambda: state(first.pid) == "T")
    # it knocks by the time the first goes on, so that its own start makes it late nowhere
    second = task(tmp_path, 1, ANNOUNCE)
    time.sleep(3)
    first.send_signal(signal.SIGCONT)
    second.communicate(timeout=30)
    first.communicate(timeout=30)
    assert (first.returncode, second.returncode) == (0, 0)


def test_a_job_that_was_asked_to_end_is_not_started_again(tmp_path):
    """Although it ends of a failure: what the launcher hears before it has seen that counts as the cause."""
    script = """
import signal, sys
signal.signal(2, signal.SIG_IGN)
signal.signal(15, lambda number, frame: os.kill(os.getppid(), 2))
if os.environ["RANK"] == "0":
    while not os.path.exists("pid-ready"):
        time.sleep(0.05)
    sys.exit(3)
announce("ready")
end = time.monotonic() + 60
while time.monotonic() < end:
    time.sleep(1)
"""
    job = start(tmp_path, ANNOUNCE + script, "-n", "2", "--restarts", "1")
    _, err = job.communicate(timeout=60)
    assert job.returncode == 3
    assert "restart 1" not in err
    assert len(list((tmp_path / "topout-runs").iterdir())) == 1


def test_a_warning_outlives_a_restart(tmp_path):
    script = """
import sys, topout
life = int(os.environ["TOPOUT_RESTART"]) if "TOPOUT_RESTART" in os.environ else len(os.listdir("topout-runs")) - 1
for _ in range(200):
    if topout.should_stop():
        sys.exit(3 if life == 0 else 0)
    time.sleep(0.05)
"""
    job = start(tmp_path, ANNOUNCE + script, "-n", "1", "--restarts", "1")
    await_pid(tmp_path, 0)
    job.send_signal(signal.SIGUSR1)
    _, err = job.communicate(timeout=60)
    assert "restart 1" in err
    assert job.returncode == 75


def test_a_script_that_handles_warnings_itself_gets_one_that_came_before_its_handler(tmp_path):
    script = """
import signal, sys
while not os.path.exists("sent"):
    time.sleep(0.05)
time.sleep(0.5)
signal.signal(signal.SIGUSR1, lambda number, frame: sys.exit(9))
time.sleep(30)
"""
    job = start(tmp_path, ANNOUNCE + script, "-n", "1")
    await_pid(tmp_path, 0)
    job.send_signal(signal.SIGUSR1)
    (tmp_path / "sent").touch()
    job.communicate(timeout=60)
    assert job.returncode == 9


def test_neither_a_warning_nor_ctrl_z_ends_a_launcher_that_waits(waiting, tmp_path):
    waiting.send_signal(signal.SIGUSR1)
    waiting.send_signal(signal.SIGTSTP)
    assert wait_for(lambda: state(waiting.pid) == "T")
    waiting.send_signal(signal.SIGCONT)
    second = task(tmp_path, 1, ANNOUNCE)
    assert second.communicate(timeout=30) is not None
    waiting.communicate(timeout=30)
    assert (waiting.returncode, second.returncode) == (0, 0)


def test_a_warning_is_kept_for_the_ranks():
    with LauncherSignals() as signals:
        os.kill(os.getpid(), signal.SIGUSR1)
        assert signals.end_asked() is None
        assert signals.taken() == [signal.SIGUSR1]
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.end_asked() == signal.SIGTERM


@pytest.mark.parametrize("num_tasks", [1, 2])
def test_how_ranks_end_is_known_where_ends_of_children_are_ignored(tmp_path, num_tasks):
    """Inherited from whoever started the job; the script finds it as python would."""
    script = "import os, signal, sys; sys.exit(3 + (signal.getsignal(signal.SIGCHLD) != signal.SIG_IGN))"
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        tasks = [task(tmp_path, rank, script) for rank in range(2)] if num_tasks == 2 else [start(tmp_path, script)]
    finally:
        signal.signal(signal.SIGCHLD, before)
    ended = [(one.communicate(timeout=60)[1], one.returncode) for one in tasks]
    assert [code for _, code in ended] == [3] * num_tasks, ended


def test_how_children_end_is_ignored_again_afterwards():
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with LauncherSignals():
            assert signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL
        assert signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGCHLD, before)


@pytest.mark.parametrize("asked", [0, 1], ids=["the first", "another"])
def test_a_second_ctrl_c_ends_the_ranks_of_all_launchers_at_once(tmp_path, asked):
    tasks = [task(tmp_path, rank, DEAF + ANNOUNCE + "time.sleep(60)") for rank in range(2)]
    try:
        pids = [await_pid(tmp_path, rank) for rank in range(2)]
        tasks[asked].send_signal(signal.SIGINT)
        for rank in range(2):
            await_pid(tmp_path, f"told-{rank}")
        assert all(map(is_running, pids))
        tasks[asked].send_signal(signal.SIGINT)
        # with patience it would be five seconds
        assert wait_for(lambda: not any(map(is_running, pids)), 4)
        for one in tasks:
            one.communicate(timeout=20)
    finally:
        for one in tasks:
            one.kill()


def test_one_ctrl_c_that_reaches_all_launchers_is_one_request(tmp_path):
    """Ranks take a while to leave, and are left to."""
    leaving = (
        "import signal, sys; signal.signal(2, lambda *_: (time.sleep(1), open('left', 'a').write('x'), sys.exit(3)))\n"
    )
    tasks = [task(tmp_path, rank, leaving + ANNOUNCE + "time.sleep(60)") for rank in range(2)]
    try:
        for rank in range(2):
            await_pid(tmp_path, rank)
        tasks[0].send_signal(signal.SIGINT)
        time.sleep(0.3)
        tasks[1].send_signal(signal.SIGINT)
        for one in tasks:
            one.communicate(timeout=20)
        assert (tmp_path / "left").read_text() == "xx"
    finally:
        for one in tasks:
            one.kill()
