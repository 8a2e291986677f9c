"""Links are measured between real processes, and only with the neighbour."""

import json
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.preflight.company import run_company
from topout.preflight.alpha_beta import fit_link
from topout.preflight.probes.interfaces import interface_with, speed_bits_per_s
from topout.preflight.probes.sockets import SIZES_BYTES, ring_rounds, within_host


@given(st.integers(2, 300))
def test_every_host_meets_its_neighbours_in_few_rounds(size: int) -> None:
    rounds = ring_rounds(size)
    assert len(rounds) <= 3
    for pairs in rounds:
        ends = [end for pair in pairs for end in pair]
        assert len(ends) == len(set(ends)), "nobody is in two pairs of a round"
    links = {frozenset(pair) for pairs in rounds for pair in pairs}
    assert links == {frozenset((number, (number + 1) % size)) for number in range(size)}


def test_the_loopback_is_measured_for_every_size() -> None:
    link = within_host("n1")
    assert [sample.num_bytes for sample in link.samples] == list(SIZES_BYTES)
    assert all(time_s > 0 for sample in link.samples for time_s in sample.times_s)
    fit = fit_link(link.samples)
    assert fit is not None and fit.beta_bytes_per_s is not None
    assert 0 < fit.alpha_s < 1 and fit.beta_bytes_per_s > 1e6


def test_a_stranger_who_knocks_first_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    create_server, strangers = socket.create_server, []

    def visited(place: tuple[str, int]) -> socket.socket:
        server = create_server(place)
        strangers.append(socket.create_connection(server.getsockname()))
        return server

    monkeypatch.setattr(socket, "create_server", visited)
    assert len(within_host("n1").samples) == len(SIZES_BYTES)
    assert strangers[0].recv(1) == b"", "sent away"


def test_three_hosts_measure_three_links(tmp_path: Path) -> None:
    script = """
import json, time
from topout.preflight.probes.meeting import meet
from topout.preflight.probes.sockets import between_hosts
with meet(deadline_s=time.monotonic() + 60) as meeting:
    links = between_hosts(meeting, ["n1", "n2", "n3"])
    print(json.dumps([[link.hosts, link.problem, len(link.samples)] for link in links]))
"""
    found = [link for out in run_company(tmp_path, 3, script) for link in json.loads(out)]
    assert sorted(hosts for hosts, _, _ in found) == [["n1", "n2"], ["n2", "n3"], ["n3", "n1"]]
    assert all(problem is None and num_samples >= 2 for _, problem, num_samples in found)


def test_a_neighbour_that_cannot_be_reached_is_a_finding(tmp_path: Path) -> None:
    script = """
import json, time
from topout.preflight.probes import sockets
from topout.preflight.probes.meeting import meet
sockets._ANSWER_LIMIT_S = 1.0
with meet(deadline_s=time.monotonic() + 30) as meeting:
    exchange = meeting.exchange
    def lie(name, value, **more):
        # port 1 of the loopback: nobody listens there
        return exchange(name, ["127.0.0.1", 1] if name == "link places" else value, **more)
    meeting.exchange = lie
    links = sockets.between_hosts(meeting, ["n1", "n2"])
    print(json.dumps([link.problem for link in links]))
"""
    problems = [json.loads(out) for out in run_company(tmp_path, 2, script)]
    assert len(problems[0]) == 1
    assert problems[0][0].startswith("127.0.0.1:1 from n1:")


def test_all_reduce_through_gloo_within_and_between_hosts(tmp_path: Path) -> None:
    script = """
import json, time
from topout.preflight.probes import collectives
from topout.preflight.probes.meeting import meet
with meet(deadline_s=time.monotonic() + 120) as meeting:
    import torch
    inside = collectives.within_host(f"n{meeting.number}", 0)
    meeting.exchange("inside", "done", patience_s=60)
    across = collectives.between_hosts(meeting, ["n1", "n2"], 0)
    for l in (*inside, *across):
        print(json.dumps([l.link_class, l.transport, l.num_ranks, [s.num_bytes for s in l.samples]]))
"""
    said = run_company(tmp_path, 2, script, timeout=240)
    first, second = ([json.loads(line) for line in out.splitlines()] for out in said)
    sizes = [4096, 65536, 1 << 20, 4 << 20, 16 << 20]
    assert first == [["within a host", "gloo", 2, sizes], ["between hosts", "gloo", 2, sizes]]
    assert second == [["within a host", "gloo", 2, sizes]]


def test_the_store_of_an_all_reduce_is_heard_at_its_own_address_alone(tmp_path: Path) -> None:
    script = """
import socket
from topout.preflight.probes import collectives
place = ("127.0.0.1", collectives._free_port("127.0.0.1"))
def knock(*_):
    for address in ("127.0.0.1", "127.0.0.2"):
        with socket.socket() as stranger:
            print(stranger.connect_ex((address, place[1])) == 0)
collectives.SIZES_BYTES, collectives._one_size = (4096,), knock
collectives._all_reduce("gloo", 0, 1, place)
"""
    assert run_company(tmp_path, 1, script) == ["True\nFalse\n"]


def test_an_address_belongs_to_an_interface() -> None:
    assert interface_with("127.0.0.1") == "lo"
    assert interface_with("192.0.2.77") is None


def test_a_virtual_interface_claims_no_speed(tmp_path: Path) -> None:
    (tmp_path / "veth0").mkdir()
    (tmp_path / "veth0" / "speed").write_text("10000\n")
    assert speed_bits_per_s("veth0", tmp_path) is None
    (tmp_path / "ib0" / "device").mkdir(parents=True)
    (tmp_path / "ib0" / "speed").write_text("100000\n")
    assert speed_bits_per_s("ib0", tmp_path) == 100e9
    (tmp_path / "ib0" / "speed").write_text("-1\n")
    assert speed_bits_per_s("ib0", tmp_path) is None
    assert speed_bits_per_s(None, tmp_path) is None
