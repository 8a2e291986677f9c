"""Whether the process that leads a run is still there is told where it can be told, and only there."""

import os
import subprocess
import sys

import pytest

from topout.schema import launcher_process
from topout.schema.launcher_process import describe_launcher, is_launcher_alive


def test_this_process_is_there():
    assert is_launcher_alive(describe_launcher()) is True


def test_a_process_that_has_gone_is_gone():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert is_launcher_alive({**describe_launcher(), "pid": gone.pid}) is False
    assert is_launcher_alive({**describe_launcher(), "pid": 1 << 80}) is False


def test_a_number_that_was_given_away_again_is_another_process():
    mine = describe_launcher()
    assert is_launcher_alive({**mine, "start_ticks": mine["start_ticks"] - 1}) is False


def test_a_process_whose_start_nobody_could_read_is_believed():
    assert is_launcher_alive({**describe_launcher(), "start_ticks": None}) is True


def test_a_killed_process_that_nobody_has_waited_for_is_gone():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    described = {**describe_launcher(), "pid": child.pid}
    described["start_ticks"] = launcher_process._state_and_start(child.pid)[1]
    assert is_launcher_alive(described) is True
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert is_launcher_alive(described) is False
    child.communicate()


def test_a_process_of_another_user_is_there(monkeypatch):
    def refuse(pid, number):
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    assert is_launcher_alive(describe_launcher()) is True


@pytest.mark.parametrize(
    "changed",
    [{"boot_id": "another"}, {"boot_id": None}, {"pid_namespace": "pid:[1]"}, {"pid_namespace": None}, {"pid": "7"}],
)
def test_of_another_machine_or_container_nothing_is_told(changed):
    assert is_launcher_alive({**describe_launcher(), "pid": 1 << 30, **changed}) is None


@pytest.mark.parametrize("entry", [None, {}, [], "launcher"])
def test_of_a_run_that_does_not_name_it_nothing_is_told(entry):
    assert is_launcher_alive(entry) is None
