"""A job of more than a thousand launchers: what each of them costs the one that leads, and the limits of the kernel."""

import errno
import fcntl
import os
import resource
import socket
import time
from types import SimpleNamespace

import pytest

from tests.launch.test_plain_values import world_of
from tests.launch.test_watchdog import at, pending, seen, standing_still
from tests.launch.test_wire import gather, in_background, say_hello
from topout.launch import holdup, ports, ranks_meeting, waits
from topout.launch.meeting_point import MeetingPoint, reach
from topout.launch.ports import free_ports
from topout.launch.ranks_meeting import _tell, meet_as_task
from topout.launch.rendezvous import connect_once, listen
from topout.launch.run_record import RunRecord
from topout.launch.scribe import Scribe
from topout.launch.watchdog import Look, Watchdog
from topout.launch.watching import Watching
from topout.launch.wire import NotOursError, Wire
from topout.schema.errors import ExitCode, TopoutError
from topout.schema.spec import RunSpec


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


def test_finding_ports_asks_for_as_many_descriptors_as_there_are_ranks(many_files):
    few_more = max(map(int, os.listdir("/proc/self/fd"))) + 32
    resource.setrlimit(resource.RLIMIT_NOFILE, (few_more, many_files))
    assert len(set(free_ports("127.0.0.1", 100))) == 100


def test_ports_that_cannot_be_had_are_an_error_and_none_stays_open(monkeypatch):
    real, held = ports.hold_port, []

    def hold_few(address):
        if len(held) == 3:
            raise OSError(errno.EMFILE, "Too many open files")
        held.append(real(address))
        return held[-1]

    monkeypatch.setattr(ports, "hold_port", hold_few)
    with pytest.raises(TopoutError, match="8 ports") as caught:
        free_ports("127.0.0.1", 8)
    assert caught.value.exit_code == ExitCode.ENVIRONMENT
    assert [port.fileno() for port in held] == [-1, -1, -1]


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
    wire = say_hello(listener.getsockname()[1], "secret")
    thread.join(10)
    assert results == [["n2"]]
    assert wire.is_open
    assert len(pauses) >= 3


def test_ranks_are_told_where_they_meet_after_descriptors_ran_out():
    door = listen("127.0.0.1")
    door.setblocking(True)
    _, thread = in_background(_tell, FullDoor(door, 2), "secret", "10.0.0.1", 29500, 1)
    wire = connect_once("127.0.0.1", door.getsockname()[1], "secret")
    told = wire.next_message(time.monotonic() + 5)
    assert (told["address"], told["port"]) == ("10.0.0.1", 29500)
    wire.send("met")
    wire.close()
    thread.join(10)
    assert not thread.is_alive()
    assert door.fileno() == -1


class HastyWire(Wire):
    """Answers the head, and is gone before it hears of that."""

    def _await(self, kind):
        if kind == "welcome":
            self.close()
            raise NotOursError("it does not answer as topout does")
        return super()._await(kind)


def test_a_task_that_gave_up_and_comes_again_does_not_count_for_another():
    door = listen("127.0.0.1")
    door.setblocking(True)
    place = door.getsockname()
    _, thread = in_background(_tell, door, "secret", "10.0.0.1", 29500, 2)
    for _ in range(2):
        with pytest.raises(NotOursError):
            HastyWire(socket.create_connection(place)).prove_as_agent("secret")
    thread.join(0.5)
    assert thread.is_alive(), "nobody has been told"
    for _ in range(2):
        wire = connect_once(*place, "secret")
        assert wire.next_message(time.monotonic() + 30)["port"] == 29500
        wire.send("met")
        wire.close()
    thread.join(30)
    assert not thread.is_alive()


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


def test_that_descriptors_ran_out_is_told_and_not_that_hosts_are_down():
    listener = listen("127.0.0.1")
    with socket.create_connection(listener.getsockname()), pytest.raises(TopoutError) as told:
        gather(FullDoor(listener, 1000), "secret", 2, timeout_s=0.2)
    assert str(told.value).startswith("2 of 2 could not be let in: others than []")
    assert f"Too many open files: {socket.gethostname()}" in str(told.value)
    assert "ulimit -Hn" in str(told.value)
    assert "down" not in str(told.value)


@pytest.mark.alone
def test_descriptors_that_ran_out_for_a_moment_are_not_blamed_for_a_host_that_is_down():
    listener = listen("127.0.0.1")
    with socket.create_connection(listener.getsockname()), pytest.raises(TopoutError, match="a host may be down"):
        gather(FullDoor(listener, 2), "secret", 2, timeout_s=0.3)


@pytest.fixture
def knocking(monkeypatch):
    """Tries to reach a meeting point, each of two seconds and with the next of these answers; counts the tries."""
    seconds, tries = [0.0], []

    def knock(answers):
        def connect_once(address, port, token):
            tries.append(seconds[0])
            seconds[0] += 2.0
            answer = next(answers)
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr("topout.launch.meeting_point.connect_once", connect_once)
        clock = SimpleNamespace(monotonic=lambda: seconds[0], sleep=lambda pause: None)
        monkeypatch.setattr("topout.launch.meeting_point.time", clock)
        return reach("10.0.0.1", 29500, "secret"), len(tries)

    return knock


def test_who_is_dropped_at_a_crowded_door_knocks_again(knocking):
    door = SimpleNamespace(close=lambda: None)
    assert knocking(iter([TimeoutError("timed out"), NotOursError("it does not answer"), door])) == (None, 3)


def test_a_filtered_door_is_given_up_before_the_head_waits_no_longer(knocking):
    assert knocking(TimeoutError("timed out") for _ in range(100)) == ("timed out", 6)


# what is kept of them


class Walked(list):
    num_walks = 0

    def __iter__(self):
        self.num_walks += 1
        return super().__iter__()


def record_of(num_hosts: int) -> RunRecord:
    return RunRecord(None, RunSpec(script="train.py"), world_of(num_hosts), ["topout"])


def notes_of(record: RunRecord) -> list[str]:
    record.write()
    return record.content["notes"]


def test_a_launcher_that_has_started_is_entered_without_walking_over_all_ranks():
    record = record_of(4)
    entries = Walked(record.content["ranks"])
    record.content["ranks"] = entries
    record.started({5: 4711, 99: 1})
    assert entries.num_walks == 0
    assert [entry["pid"] for entry in entries] == [None] * 5 + [4711, None, None]


def test_a_sentence_of_many_ranks_is_one_note():
    record = record_of(300)
    for rank in (2, *range(600), 7):
        record.note(f"n{rank // 2:04d}: rank {rank}: no NVML" if rank > 1 else f"rank {rank}: no NVML")
    for rank in (0, 1, 2, 9):
        record.note(f"rank {rank} counters: recording stopped: No space left on device; training goes on")
    record.note("rank 7: was ended")
    assert notes_of(record) == [
        "ranks 0-599: no NVML",
        "ranks 0-2,9 counters: recording stopped: No space left on device; training goes on",
        "rank 7: was ended",
    ]


def test_a_sentence_of_many_hosts_is_one_note():
    record = record_of(300)
    for number in range(300):
        record.note(f"n{number:04d}: two cores are idle")
    record.note("n0001: one core is idle")
    record.note("n9999: is no host of this job")
    record.note("rank and file: nothing of a rank")
    assert notes_of(record) == [
        "n0000, n0001, n0002, n0003 and 296 more: two cores are idle",
        "n0001: one core is idle",
        "n9999: is no host of this job",
        "rank and file: nothing of a rank",
    ]


def test_how_many_notes_are_left_out_is_said():
    record = record_of(1)
    for number in range(203):
        record.note(f"sentence {number}")
    record.note("sentence 0")
    assert notes_of(record)[-2:] == ["sentence 199", "3 more notes are left out"]


def test_a_note_that_is_no_news_is_not_written_again(monkeypatch):
    record = record_of(2)
    record.note("rank 1: no NVML")
    record.write()
    record.note("rank 1: no NVML")
    written: list[str] = []
    monkeypatch.setattr(record, "_put", written.append)
    record._written_at = -10.0
    record.tick(Scribe())
    assert written == []
    record.note("rank 2: no NVML")
    record.tick(Scribe())
    assert len(written) == 1 and "ranks 1-2: no NVML" in written[0]


# who holds them up


def counted(monkeypatch, *names: str) -> list[str]:
    """The calls of these functions of `waits`, by whomever."""
    calls: list[str] = []
    for name in names:
        function = getattr(waits, name)

        def call(*arguments, name=name, function=function):
            calls.append(name)
            return function(*arguments)

        for module in (waits, holdup):
            monkeypatch.setattr(module, name, call, raising=False)
    return calls


def stalled_hosts(num_hosts: int, **wait):
    """Eight ranks a host with a group of their own, in which all but the first wait."""
    return [
        seen(
            8 * host + local,
            host=f"n{host}",
            pending=None if local == 0 else pending("recv", **({"number": 3} | wait), group=f"nccl:{host}-"),
            positions=(at(f"nccl:{host}-", 2 if local == 0 else 3, 2),),
        )
        for host in range(num_hosts)
        for local in range(8)
    ]


@pytest.mark.parametrize("number", [3, None], ids=["collectives", "receives"])
def test_a_look_at_a_group_on_every_host_costs_a_little_for_each_rank(monkeypatch, number):
    calls = counted(monkeypatch, "reached", "wait_of")
    found = holdup.find_holdup(stalled_hosts(50, number=number), {})
    assert found is not None
    assert found.ranks == tuple(range(0, 400, 8))
    assert len(calls) <= 2 * 400


def test_a_look_that_takes_long_is_no_stop_of_the_launcher():
    watchdog = Watchdog()
    said = []
    for second in range(0, 30, 6):
        said += [second for _ in watchdog.look(second, standing_still(second)).lines]
        watchdog.looked_until(second + 5.5)
    assert said == [12]


def test_how_long_a_look_took_is_told(monkeypatch):
    clock = iter([106.0])
    monkeypatch.setattr("topout.launch.watching.time", SimpleNamespace(monotonic=lambda: next(clock)))
    told: list[float] = []
    watchdog = SimpleNamespace(look=lambda now, ranks: Look(), looked_until=told.append)
    Watching(SimpleNamespace(observations=list), watchdog, say=print, ask_elsewhere=print).look(100.0)
    assert told == [106.0]


@pytest.fixture
def second_task(monkeypatch):
    """This process is one of two that mpirun started."""
    variables = {"RANK": 1, "SIZE": 2, "LOCAL_RANK": 1, "LOCAL_SIZE": 2}
    for name, value in variables.items():
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", str(value))
    monkeypatch.setenv("PMIX_NAMESPACE", "nobody-leads")


@pytest.mark.usefixtures("second_task")
def test_the_leading_task_hears_that_its_word_was_read(monkeypatch):
    door = listen("127.0.0.1")
    door.setblocking(True)
    place = door.getsockname()
    monkeypatch.setattr(ranks_meeting, "connect", lambda *_, **__: connect_once(*place, "secret"))
    _, thread = in_background(_tell, door, "secret", "10.0.0.1", 29500, 1)
    meeting = meet_as_task(timeout_s=30)
    assert (meeting.rank, meeting.address, meeting.port) == (1, "10.0.0.1", 29500)
    thread.join(30)
    assert not thread.is_alive()


@pytest.mark.usefixtures("second_task")
def test_a_task_that_waits_in_vain_is_told_how_init_waits_longer():
    with pytest.raises(TopoutError, match="cannot reach the head of its job") as raised:
        meet_as_task(timeout_s=0.2)
    assert "topout.init(start_timeout_s=" in raised.value.do
    assert "--start-timeout" not in raised.value.do
