"""Launchers on two hosts trust each other only after both have shown the job's token, and nothing else gets in."""

import json
import os
import signal
import socket
import threading
import time

import pytest

from topout import __version__
from topout.host.light_selector import Selector
from topout.launch import rendezvous
from topout.launch import wire as wire_module
from topout.launch.gathering import Gathering
from topout.launch.meeting_point import MeetingPoint, reach
from topout.launch.member import Member
from topout.launch.plain_values import to_plain
from topout.launch.ports import free_ports, hold_port
from topout.launch.rendezvous import connect, connect_once, job_ports, job_token, listen
from topout.launch.signals import EndedByError, LauncherSignals
from topout.launch.wire import NotOursError, Wire, encoded
from topout.schema.errors import TopoutError
from topout.schema.light_dataclass import replace
from topout.schema.world import Core, Host

pytestmark = pytest.mark.alone

HOST = Host(name="n2", cores=(Core(index=0, physical=0, socket=0, numa=0),), memory_bytes=1)


def say_hello(port: int, token: str, number: int = 1, host: Host = HOST) -> Wire:
    wire = connect_once("127.0.0.1", port, token)
    wire.send("hello", member=to_plain(Member(number=number, host=host, is_task=True)))
    return wire


def gather(listener: socket.socket, token: str, num_wanted: int, timeout_s: float = 10.0) -> list[str]:
    with Gathering(listener, token, None) as gathering:
        links = gathering.await_all(
            num_wanted,
            timeout_s=timeout_s,
            signals=LauncherSignals(),
            check=lambda: None,
            missing=lambda arrived: f"others than {sorted(arrived)}",
        )
    return [link.member.host.name for link in links]


def in_background(action, *arguments):
    results: list = []

    def run():
        try:
            results.append(action(*arguments))
        except (Exception, EndedByError) as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return results, thread


def test_who_knows_the_token_is_let_in():
    listener = listen("127.0.0.1")
    results, thread = in_background(gather, listener, "secret", 1)
    wire = say_hello(listener.getsockname()[1], "secret")
    thread.join(10)
    assert results == [["n2"]]
    assert wire.peer_version == __version__


def test_who_does_not_know_the_token_is_refused_and_holds_nobody_up():
    listener = listen("127.0.0.1")
    port = listener.getsockname()[1]
    results, thread = in_background(gather, listener, "secret", 1)
    silent = socket.create_connection(("127.0.0.1", port))
    noisy = socket.create_connection(("127.0.0.1", port))
    noisy.sendall(b"GET / HTTP/1.1\r\n\r\n" + b"x" * 100_000)
    with pytest.raises(NotOursError):
        connect_once("127.0.0.1", port, "another")
    wire = say_hello(port, "secret")
    thread.join(10)
    assert wire.is_open
    assert results == [["n2"]]
    silent.close()
    noisy.close()


@pytest.mark.parametrize(
    "line",
    [
        b'{"kind": "answer", "proof": "\\u00e9"}',
        b'{"kind": "answer", "proof": "\\ud800", "nonce": "\\ud800"}',
        b'{"kind": "answer", "proof": ' + 2000 * b"[" + 2000 * b"]" + b"}",
        b'{"kind": "answer", "proof": 7, "nonce": [], "topout": {}}',
        b"[" * 4000,
        b"[" * 60_000,
    ],
    ids=["not ASCII", "a surrogate", "nested", "not texts", "deep", "deep and long"],
)
def test_no_line_of_a_stranger_ends_the_job(line):
    listener = listen("127.0.0.1")
    port = listener.getsockname()[1]
    results, thread = in_background(gather, listener, "secret", 1)
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.sendall(line + b"\n")
        wire = say_hello(port, "secret")
        thread.join(10)
    assert wire.is_open
    assert results == [["n2"]]


def test_a_long_line_of_a_stranger_is_not_even_parsed(monkeypatch):
    left, right = socket.socketpair()
    wire = Wire(right)
    wire._settle()
    parsed: list[bytes] = []
    monkeypatch.setattr("topout.launch.wire.parse_message", parsed.append)
    left.sendall(b"{}\n" + b" " * 5000 + b"{}\n{}\n")
    assert wire.receive() == []
    assert (wire.is_open, parsed) == (False, [b"{}"])
    left.close()


def test_a_nonce_that_is_no_text_proves_nothing():
    impostor = socket.create_server(("127.0.0.1", 0))

    def pretend():
        connection, _ = impostor.accept()
        connection.sendall(b'{"kind": "challenge", "nonce": "\\ud800", "topout": []}\n')
        connection.recv(4096)
        connection.sendall(b'{"kind": "welcome", "proof": "\\ud800"}\n')
        connection.recv(4096)

    _, thread = in_background(pretend)
    with pytest.raises(NotOursError, match="token"):
        connect_once("127.0.0.1", impostor.getsockname()[1], "secret")
    thread.join(10)
    impostor.close()


def test_a_head_that_does_not_know_the_token_is_not_obeyed():
    impostor = socket.create_server(("127.0.0.1", 0))

    def pretend():
        connection, _ = impostor.accept()
        connection.sendall(json.dumps({"kind": "challenge", "nonce": "00", "topout": __version__}).encode() + b"\n")
        connection.recv(4096)
        connection.sendall(json.dumps({"kind": "welcome", "proof": "00", "now_ns": 1}).encode() + b"\n")
        connection.recv(4096)

    _, thread = in_background(pretend)
    with pytest.raises(NotOursError, match="token"):
        connect_once("127.0.0.1", impostor.getsockname()[1], "secret")
    thread.join(10)
    impostor.close()


def test_another_jobs_head_on_our_port_is_passed_over():
    other, own = listen("127.0.0.1"), listen("127.0.0.1")
    ports = [other.getsockname()[1], own.getsockname()[1]]
    others, first = in_background(gather, other, "theirs", 1, 2.0)
    results, second = in_background(gather, own, "ours", 1)
    import msgspec

    wire = connect(["127.0.0.1"], ports, "ours", timeout_s=10)
    wire.send("hello", member=msgspec.to_builtins(Member(number=3, host=HOST, is_task=True)))
    second.join(10)
    first.join(10)
    assert results == [["n2"]]
    assert isinstance(others[0], TopoutError)


def test_who_does_not_arrive_is_named_within_the_timeout():
    listener = listen("127.0.0.1")
    with pytest.raises(TopoutError, match=r"2 of 2 did not arrive: others than \[\]"):
        gather(listener, "secret", 2, timeout_s=0.3)


def test_another_version_is_named(monkeypatch):
    listener = listen("127.0.0.1")
    results, thread = in_background(gather, listener, "secret", 1)
    monkeypatch.setattr("topout.launch.wire.__version__", "9.9.9")
    say_hello(listener.getsockname()[1], "secret")
    thread.join(10)
    assert "n2 runs another topout" in str(results[0])
    assert "9.9.9" in results[0].why


def test_where_tokens_differ_both_ends_say_so(monkeypatch):
    monkeypatch.delenv("TOPOUT_TOKEN", raising=False)
    (port,) = free_ports("127.0.0.1", 1)
    results, thread = in_background(gather, listen("127.0.0.1", [port]), "secret", 1, 1.5)
    with pytest.raises(TopoutError) as error:
        connect(["127.0.0.1"], [port], "other", timeout_s=0.7)
    thread.join()
    assert "was refused where the head of its job should be" in error.value.problem
    assert "topout/key is another file there" in error.value.why
    assert "the same TOPOUT_TOKEN" in error.value.do
    assert "did not arrive" in results[0].problem
    assert "knew another token" in results[0].why


def say_hello_and_more(port: int) -> Wire:
    """The hello stays in the kernel and leaves with what comes next, as a head that was busy finds it."""
    wire = connect_once("127.0.0.1", port, "secret")
    hello = encoded(kind="hello", member=to_plain(Member(number=1, host=HOST, is_task=True)))
    wire._socket.send(b"{" + hello + b"}\n", socket.MSG_MORE)
    return wire


def test_who_came_and_has_gone_again_is_lost_and_not_left_out():
    listener = listen("127.0.0.1")
    port = listener.getsockname()[1]
    results, thread = in_background(gather, listener, "secret", 2)
    say_hello_and_more(port).close()
    stays = say_hello(port, "secret", 2, replace(HOST, name="n3"))
    thread.join(10)
    (error,) = results
    assert error.problem == "n2 was lost while the job started."
    assert stays.next_message(time.monotonic() + 10)["kind"] == "bye"


def test_who_came_and_was_told_to_end_ends_the_job():
    listener = listen("127.0.0.1")
    results, thread = in_background(gather, listener, "secret", 1)
    told = say_hello_and_more(listener.getsockname()[1])
    told.send("ending", cause="interrupted", orders=[], number=int(signal.SIGTERM), rank=None)
    told.close()
    thread.join(10)
    (error,) = results
    assert (type(error), error.number) == (EndedByError, signal.SIGTERM)


def test_two_that_claim_one_place_are_refused():
    listener = listen("127.0.0.1")
    results, thread = in_background(gather, listener, "secret", 3)
    wires = [say_hello(listener.getsockname()[1], "secret", number=1) for _ in range(2)]
    thread.join(10)
    assert "Two launchers claim place 1" in str(results[0])
    # the one that had been let in is told to go
    deadline = time.monotonic() + 5
    heard: list = []
    while not heard and time.monotonic() < deadline:
        heard = wires[0].receive()
        time.sleep(0.02)
    assert heard and heard[0]["kind"] == "bye"


def test_clocks_of_both_ends_are_compared():
    listener = listen("127.0.0.1")
    _, thread = in_background(gather, listener, "secret", 1)
    began_ns = time.monotonic_ns()
    wire = say_hello(listener.getsockname()[1], "secret")
    took_ns = time.monotonic_ns() - began_ns
    thread.join(10)
    assert abs(wire.clock_offset_ns) <= took_ns  # both ends are this process


def connected(kind: type[socket.socket] = socket.socket) -> tuple[Wire, Wire]:
    wires = [Wire(kind(fileno=end.detach())) for end in socket.socketpair()]
    for wire in wires:
        wire._settle()
    return wires[0], wires[1]


def test_a_message_larger_than_the_sockets_buffer_arrives_whole():
    sender, receiver = connected()
    receiver._longest_bytes = 1 << 24
    text = "x" * 3_000_000
    sender.send("output", data=text)
    messages: list = []
    deadline = time.monotonic() + 10
    while not messages and time.monotonic() < deadline:
        sender.flush()
        messages += receiver.receive()
    assert messages == [{"kind": "output", "data": text}]


class Overtaken(socket.socket):
    """Another thread sends as well while the first message is on its way."""

    other = None

    def send(self, data, flags=0):
        action, self.other = self.other, None
        with memoryview(data):
            if action is not None:
                self.results, self.thread = in_background(action)
                self.thread.join(0.3)
            return super().send(data, flags)


def test_what_two_threads_send_at_once_arrives_whole_and_once():
    sender, receiver = connected(Overtaken)
    overtaken = sender._socket
    overtaken.other = lambda: sender.send("note", text="no NVML")
    sender.send("look", ranks=[])
    overtaken.thread.join(10)
    assert overtaken.results == [None]
    assert receiver.receive() == [{"kind": "look", "ranks": []}, {"kind": "note", "text": "no NVML"}]


def test_shared_content_arrives_beside_a_links_own():
    sender, receiver = connected()
    sender.send("start", encoded(world={"a": [1, "é"]}, run=None), ranks=(3,))
    assert receiver.receive() == [{"kind": "start", "ranks": [3], "world": {"a": [1, "é"]}, "run": None}]


def test_what_could_not_be_sent_leaves_while_waiting():
    sender, receiver = connected()
    receiver._longest_bytes = 1 << 24
    sender.send("output", data="x" * 1_000_000)
    assert sender.has_unsent
    messages: list = []
    for _ in range(1000):
        messages += receiver.receive()
        if not sender.has_unsent:
            break
        sender.wait(5.0)
    assert len(messages + receiver.receive()) == 1


def test_the_port_comes_from_the_job_and_a_taken_one_is_passed_over():
    assert job_ports("slurm-17.0") == job_ports("slurm-17.0")
    assert job_ports("slurm-17.0") != job_ports("slurm-18.0")
    assert all(20_000 <= port < 32_000 for port in job_ports("x"))
    ports = job_ports(f"test-{os.getpid()}")
    with listen("127.0.0.1", ports) as first, listen("127.0.0.1", ports) as second:
        assert first.getsockname()[1] != second.getsockname()[1]
        assert {first.getsockname()[1], second.getsockname()[1]} <= set(ports)


def test_all_ports_taken_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(TopoutError, match="No port to lead this job"):
            listen("127.0.0.1", [taken.getsockname()[1]])


def test_the_token_is_the_same_for_one_job_and_another_for_the_next(tmp_path):
    environ = {"HOME": str(tmp_path)}
    assert job_token("1", environ) == job_token("1", environ) != job_token("2", environ)
    key = tmp_path / ".config/topout/key"
    assert key.stat().st_mode & 0o777 == 0o600
    assert job_token("1", {**environ, "TOPOUT_TOKEN": "mine"}) == "mine"


def test_a_key_that_others_can_read_is_refused(tmp_path):
    environ = {"HOME": str(tmp_path)}
    job_token("1", environ)
    (tmp_path / ".config/topout/key").chmod(0o644)
    with pytest.raises(TopoutError) as error:
        job_token("1", environ)
    assert "only its owner" in error.value.why


def test_a_user_without_a_home_is_told_to_bring_a_token(homeless, tmp_path):
    with pytest.raises(TopoutError) as error:
        job_token("1", {})
    assert error.value.why == "this user has no home folder"
    assert "export TOPOUT_TOKEN=" in error.value.do
    assert list(tmp_path.iterdir()) == []


def test_many_processes_that_need_a_key_at_once_get_the_same(tmp_path):
    import subprocess
    import sys

    code = "import os; from topout.launch.rendezvous import job_token; print(job_token('1', os.environ))"
    environ = {**os.environ, "HOME": str(tmp_path)}
    environ.pop("XDG_CONFIG_HOME", None)
    started = [
        subprocess.Popen([sys.executable, "-c", code], env=environ, stdout=subprocess.PIPE, text=True) for _ in range(8)
    ]
    assert len({process.communicate()[0] for process in started}) == 1


def test_a_name_that_does_not_resolve_is_an_error_with_a_way_out(monkeypatch):
    monkeypatch.setattr(rendezvous, "_UNKNOWN_NAME_S", 0.0)
    with pytest.raises(TopoutError) as error:
        rendezvous.resolve("no-such-host.invalid")
    assert "no-such-host.invalid" in error.value.problem
    assert "TOPOUT_HEAD" in error.value.do


def test_an_unreachable_head_is_an_error_after_the_timeout():
    port = free_ports("127.0.0.1", 1)[0]
    with pytest.raises(TopoutError) as error:
        connect(["127.0.0.1"], [port], "secret", timeout_s=0.3, hint="ask n3")
    assert str(port) in error.value.why
    assert "--start-timeout" in error.value.do
    assert error.value.do.endswith("; ask n3")


def test_ports_that_never_answer_are_not_all_awaited_beyond_the_timeout(monkeypatch):
    monkeypatch.setattr(wire_module, "HANDSHAKE_S", 0.2)
    silent = [listen("127.0.0.1") for _ in range(8)]
    num_checks = 0

    def check():
        nonlocal num_checks
        num_checks += 1

    with pytest.raises(TopoutError, match="cannot reach the head"):
        connect(["127.0.0.1"], [door.getsockname()[1] for door in silent], "secret", timeout_s=0.3, check=check)
    # a signal is looked for after each of them
    assert 1 <= num_checks <= 3
    for door in silent:
        door.close()


def test_time_in_which_it_was_stopped_does_not_count_against_who_looks_for_the_head():
    num_checks = 0

    def check():
        nonlocal num_checks
        num_checks += 1
        if num_checks == 1:
            time.sleep(0.8)

    with pytest.raises(TopoutError):
        connect(["127.0.0.1"], [free_ports("127.0.0.1", 1)[0]], "secret", timeout_s=0.5, check=check)
    assert num_checks > 1


def test_who_arrives_while_the_head_is_stopped_is_heard(monkeypatch):
    class StoppedOnce(LauncherSignals):
        has_stopped = False

        def raise_if_asked(self, *, may_pause=True):
            if gathering._pending and not self.has_stopped:
                self.has_stopped = True
                time.sleep(0.8)

    monkeypatch.setattr("topout.launch.gathering.HANDSHAKE_S", 0.5)
    listener = listen("127.0.0.1")
    with Gathering(listener, "secret", None) as gathering:
        results, thread = in_background(say_hello, listener.getsockname()[1], "secret")
        links = gathering.await_all(1, timeout_s=5, signals=StoppedOnce(), check=lambda: None, missing=str)
    thread.join(10)
    assert [link.member.host.name for link in links] == ["n2"]
    results[0].close()


def test_nothing_else_is_done_while_a_newcomer_is_answered():
    """It takes the time from how long the answer is under way."""

    def come(port):
        while not loaded_at:
            time.sleep(0.001)
        came_at[0] = time.monotonic()
        with socket.create_connection(("127.0.0.1", port)) as newcomer:
            newcomer.recv(1 << 12)
            time.sleep(0.3)
            left_at[0] = time.monotonic()
        return say_hello(port, "secret")

    def load():
        loaded_at.append(time.monotonic())
        time.sleep(0.001)
        return True

    came_at, left_at, loaded_at = [0.0], [0.0], []
    listener = listen("127.0.0.1")
    with Gathering(listener, "secret", None) as gathering:
        came, thread = in_background(come, listener.getsockname()[1])
        gathering.await_all(1, timeout_s=5, signals=LauncherSignals(), check=lambda: None, missing=str, meanwhile=load)
    thread.join(10)
    assert loaded_at
    assert not [at for at in loaded_at if came_at[0] + 0.1 < at < left_at[0]]
    came[0].close()


def test_the_meeting_point_answers_and_then_leaves_its_port_to_rank_0():
    selector = Selector()
    point = MeetingPoint("127.0.0.1", "secret")
    point.register(selector)
    results, thread = in_background(reach, "127.0.0.1", point.port, "secret")
    while thread.is_alive():
        for act in selector.select(0.1):
            act()
    assert results == [None]
    point.stop_answering()
    with socket.socket() as rank_0:
        rank_0.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        rank_0.bind(("0.0.0.0", point.port))
        rank_0.listen()
    point.close()


def test_a_meeting_point_that_nobody_can_reach_says_why():
    holder = hold_port("127.0.0.1")
    assert "refused" in str(reach("127.0.0.1", holder.getsockname()[1], "secret")).lower()
    holder.close()
