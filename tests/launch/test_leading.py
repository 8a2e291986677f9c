"""Who leads a job's tasks, and where the others look: also on hosts whose own name or bridge is the same everywhere."""

import pytest

from topout.launch import leading
from topout.launch.allocation import Allocation, Task
from topout.launch.leading import Lead, find_lead, head_addresses, hint_of_head, own_address

HOSTS = Allocation(scheduler="slurm", job_id="1", hosts=("n1", "n2"))
OF_MPIRUN = Allocation(scheduler="openmpi", job_id="1", head="10.0.0.1,172.17.0.1")
OWN = {"127.0.1.1", "10.0.0.2", "172.17.0.1"}


@pytest.fixture(autouse=True)
def second_host(monkeypatch):
    """n2 with Docker, at 10.0.0.2; its own name leads to 127.0.1.1."""
    monkeypatch.delenv("TOPOUT_HEAD", raising=False)
    known = {"n1": ["10.0.0.1"], "n2": ["127.0.1.1"]}
    monkeypatch.setattr(leading, "resolve", lambda name: known.get(name, [name]))
    monkeypatch.setattr(leading, "is_own", lambda address: address in OWN)
    monkeypatch.setattr(leading, "is_this_host", lambda name: name == "n2")
    monkeypatch.setattr(leading, "inner_addresses", lambda: frozenset({"172.17.0.1"}))
    monkeypatch.setattr(
        leading, "route_address", lambda hosts, interface: {None: "10.0.0.2"}.get(interface, "10.1.0.2")
    )


def task(rank: int, local_rank: int) -> Task:
    return Task(rank=rank, world_size=4, local_rank=local_rank, local_size=2)


@pytest.mark.parametrize("interface", [None, "ib0"])
def test_a_task_beside_the_head_looks_where_the_head_listens(interface):
    turned = Allocation(scheduler="slurm", job_id="1", hosts=("n2", "n1"))
    head, beside = find_lead(turned, task(0, 0)), find_lead(turned, task(1, 1))
    assert (head.is_own, beside.is_own, beside.addresses) == (True, False, ("127.0.1.1",))
    assert head_addresses(beside, turned, interface) == (own_address(head, turned, interface),)
    assert not own_address(head, turned, interface).startswith("127.")


def test_a_task_elsewhere_looks_where_the_name_leads():
    lead = find_lead(HOSTS, task(2, 0))
    assert head_addresses(lead, HOSTS, None) == ("10.0.0.1",)


def test_a_task_elsewhere_does_not_look_at_itself(monkeypatch):
    """Where its /etc/hosts says so, as of an image that was cloned, the error must name what it says."""
    monkeypatch.setattr(leading, "resolve", lambda name: ["127.0.1.1"])
    assert head_addresses(find_lead(HOSTS, task(2, 0)), HOSTS, None) == ("127.0.1.1",)


def test_on_one_host_the_loopback_is_where_all_meet():
    lead = Lead(addresses=("127.0.0.1",), is_own=False, is_on_one_host=True)
    assert head_addresses(lead, HOSTS, None) == ("127.0.0.1",)


def test_a_bridge_that_every_host_has_makes_nobody_lead():
    elsewhere = find_lead(OF_MPIRUN, task(2, 0))
    assert (elsewhere.is_own, elsewhere.addresses) == (False, ("10.0.0.1",))


def test_the_first_task_of_mpiruns_host_leads_at_an_address_that_others_reach(monkeypatch):
    monkeypatch.setattr(leading, "is_own", lambda address: address in {"10.0.0.1", "172.17.0.1"})
    lead = find_lead(Allocation(scheduler="openmpi", job_id="1", head="172.17.0.1,10.0.0.1"), task(0, 0))
    assert lead.is_own
    assert own_address(lead, OF_MPIRUN, None) == "10.0.0.1"
    assert not find_lead(OF_MPIRUN, task(1, 1)).is_own


def test_only_under_mpirun_in_a_managers_job_rank_0_may_be_elsewhere(monkeypatch):
    inside = Allocation(scheduler="openmpi", job_id="1/1", hosts=("n1", "n2"), head="n1")
    hint = hint_of_head(inside)
    assert "first host (n1)" in hint and "TOPOUT_HEAD=HOST of rank 0" in hint
    assert (hint_of_head(HOSTS), hint_of_head(OF_MPIRUN)) == ("", "")
    monkeypatch.setenv("TOPOUT_HEAD", "n3")
    assert hint_of_head(inside) == ""
