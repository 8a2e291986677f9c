"""A job of more than a thousand launchers: descriptors beyond 1,023, and what happens when there are none left."""

import errno
import fcntl
import os
import resource
import socket
import time
from types import SimpleNamespace

import pytest

from tests.launch.test_wire import gather, in_background, say_hello
from topout.launch.meeting_point import MeetingPoint
from topout.launch.ranks_meeting import _tell
from topout.launch.rendezvous import connect_once, listen
from topout.launch.wire import Wire
from topout.schema.errors import TopoutError


@pytest.fixture
def many_files():
    """The hard limit; the soft one is 2,000, or what a test makes of it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2000:
        pytest.fail("a hard limit of 2,000 open files is needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2000, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_descriptor_beyond_1023_is_waited_for(many_files):
    left, right = socket.socketpair()
    high = fcntl.fcntl(right.fileno(), fcntl.F_DUPFD_CLOEXEC, 1500)
    right.close()
    wire = Wire(socket.socket(fileno=high))
    wire._settle()
    wire.wait(0.0)
    left.sendall(b'{"kind": "beat"}\n')
    wire.wait(5.0)
    assert wire.receive() == [{"kind": "beat"}]
    wire.close()
    left.close()


def test_a_gathering_asks_for_as_many_descriptors_as_launchers_come(many_files):
    few_more = max(map(int, os.listdir("/proc/self/fd"))) + 32
    resource.setrlimit(resource.RLIMIT_NOFILE, (few_more, many_files))
    with pytest.raises(TopoutError, match="1500 of 1500"):
        gather(listen("127.0.0.1"), "secret", 1500, timeout_s=0.0)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 1500


class FullDoor:
    """A listener that has somebody waiting, and no descriptor left for a while."""

    def __init__(self, listener: socket.socket, num_failures: int) -> None:
        self._listener = listener
        self.num_left = num_failures

    def accept(self):
        if self.num_left:
            self.num_left -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return self._listener.accept()

    def __getattr__(self, name):
        return getattr(self._listener, name)


def test_who_cannot_be_taken_yet_is_taken_later_without_spinning(monkeypatch):
    pauses: list[float] = []
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=pauses.append)
    monkeypatch.setattr("topout.launch.gathering.time", clock)
    listener = listen("127.0.0.1")
    results, thread = in_background(gather, FullDoor(listener, 3), "secret", 1)
    say_hello(listener.getsockname()[1], "secret")
    thread.join(10)
    assert results == [["n2"]]
    assert len(pauses) >= 3


def test_ranks_are_told_where_they_meet_after_descriptors_ran_out():
    door = listen("127.0.0.1")
    door.setblocking(True)
    _, thread = in_background(_tell, FullDoor(door, 2), "secret", "10.0.0.1", 29500, 1)
    wire = connect_once("127.0.0.1", door.getsockname()[1], "secret")
    told = wire.next_message(time.monotonic() + 5)
    assert (told["address"], told["port"]) == ("10.0.0.1", 29500)
    wire.close()
    thread.join(10)
    assert not thread.is_alive()
    assert door.fileno() == -1


def test_a_meeting_point_without_descriptors_does_not_spin(monkeypatch):
    pauses: list[float] = []
    monkeypatch.setattr("topout.launch.meeting_point.time", SimpleNamespace(sleep=pauses.append))
    point = MeetingPoint("127.0.0.1", "secret")
    point._listener = FullDoor(point._listener, 1)
    point._welcome()
    assert len(pauses) == 1
    point._welcome()
    assert len(pauses) == 1, "nobody waits"
    point.close()
