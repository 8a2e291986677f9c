"""Probes meet, exchange what they know, and go on without those who do not come."""

import json
import socket
import threading
import time
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.preflight.company import run_company
from topout.preflight.probes.meeting import SECRET_VARIABLE, meet, server_at, token_of


def environment(number: int, size: int, port: int) -> dict[str, str]:
    return {
        "GROUP_RANK": str(number),
        "GROUP_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TOPOUT_RUN": "/runs/1",
    }


def test_everybody_gets_everybodys_values_in_order(tmp_path: Path) -> None:
    script = """
import json, os, time
from topout.preflight.probes.meeting import meet
with meet(deadline_s=time.monotonic() + 30) as meeting:
    first = meeting.exchange("names", f"n{meeting.number}")
    second = meeting.exchange("squares", meeting.number ** 2)
    print(json.dumps([first, second, meeting.problem, meeting.address]))
"""
    said = [json.loads(out) for out in run_company(tmp_path, 3, script)]
    assert said == [[["n0", "n1", "n2"], [0, 1, 4], None, "127.0.0.1"]] * 3


@pytest.mark.parametrize(("address", "family"), [("10.0.0.1", socket.AF_INET), ("fd00::1", socket.AF_INET6)])
def test_a_probe_listens_in_the_family_of_its_address(
    monkeypatch: pytest.MonkeyPatch, address: str, family: int
) -> None:
    asked = []
    monkeypatch.setattr(socket, "create_server", lambda place, **options: asked.append((place, options["family"])))
    server_at((address, 0))
    assert asked == [((address, 0), family)]


def test_one_host_meets_itself() -> None:
    with meet({}, deadline_s=time.monotonic() + 5) as meeting:
        assert meeting.exchange("names", "n1") == ["n1"]
        assert meeting.address is None


@pytest.mark.alone
def test_a_host_that_does_not_come_is_counted_and_the_others_go_on() -> None:
    port, deadline_s = free_port(), time.monotonic() + 2
    found = {}

    def join(number: int) -> None:
        with meet(environment(number, 3, port), deadline_s=deadline_s) as meeting:
            found[number] = (meeting.exchange("names", number, patience_s=1.0), meeting.problem)

    threads = [threading.Thread(target=join, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert found[0] == ([0, 1, None], "1 of 3 hosts did not come")


@pytest.mark.alone
def test_what_is_handed_in_after_the_deadline_is_still_heard_by_the_first_host_alone() -> None:
    port, deadline_s = free_port(), time.monotonic() + 1
    found = {}

    def join(number: int) -> None:
        with meet(environment(number, 2, port), deadline_s=deadline_s) as meeting:
            time.sleep(max(deadline_s + 0.2 * number - time.monotonic(), 0))
            # longer than what a socket keeps
            found[number] = meeting.hand_in("findings", str(number) * 10_000_000, deadline_s + 30)

    threads = [threading.Thread(target=join, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert [(value[0], len(value)) for value in found[0]] == [("0", 10_000_000), ("1", 10_000_000)]
    assert found[1] == []


def test_a_first_host_that_is_not_there_is_said_and_measuring_goes_on() -> None:
    with meet(environment(1, 2, free_port()), deadline_s=time.monotonic() + 0.5) as meeting:
        assert meeting.problem is not None and "127.0.0.1" in meeting.problem
        assert meeting.exchange("names", "n2") == [None, "n2"]


def test_a_stranger_is_turned_away() -> None:
    port = free_port()
    deadline_s = time.monotonic() + 20
    found = {}

    def lead() -> None:
        with meet(environment(0, 2, port), deadline_s=deadline_s) as meeting:
            found["values"] = meeting.exchange("names", "n1", patience_s=10)

    def member() -> None:
        with meet(environment(1, 2, port), deadline_s=deadline_s) as meeting:
            meeting.exchange("names", "n2", patience_s=10)

    leading = threading.Thread(target=lead)
    leading.start()
    stranger = _connected(port, deadline_s)
    stranger.sendall(json.dumps({"kind": "answer", "proof": "guessed", "nonce": "", "topout": "0"}).encode() + b"\n")
    stranger.settimeout(10)
    heard = b""
    while data := stranger.recv(4096):
        heard += data
    assert [json.loads(line)["kind"] for line in heard.splitlines()] == ["challenge", "refused"]
    joining = threading.Thread(target=member)
    joining.start()
    for thread in (leading, joining):
        thread.join(timeout=30)
    assert found["values"] == ["n1", "n2"]


def test_two_jobs_have_different_tokens() -> None:
    first = environment(0, 2, 4000)
    assert token_of(first) == token_of({**first, "GROUP_RANK": "1"})
    assert token_of(first) != token_of({**first, "MASTER_PORT": "4001"})


def test_hosts_that_keep_their_files_apart_have_one_token() -> None:
    first = environment(0, 2, 4000)
    assert token_of(first) == token_of({**first, "TOPOUT_RUN": "/tmp/runs/1", "TORCHELASTIC_RUN_ID": "topout"})


def test_the_doctors_secret_stands_in_for_a_key_that_hosts_do_not_share(homeless: None) -> None:
    environ = environment(0, 2, 4000)
    with pytest.raises(OSError, match="no home folder"):
        token_of(environ)
    assert token_of({**environ, SECRET_VARIABLE: "made for this run"}) == "made for this run"


def _connected(port: int, deadline_s: float) -> socket.socket:
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=5)
        except OSError:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
