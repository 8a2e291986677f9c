"""--interface: asked of the hosts that talk over it, and a wrong name is told on one host, too."""

import pytest

from topout.launch import rendezvous
from topout.launch.rendezvous import check_interface, own_interface, route_address
from topout.schema.errors import TopoutError
from topout.schema.spec import RunSpec


@pytest.fixture(autouse=True)
def addresses(monkeypatch):
    here = {"lo": ("127.0.0.1",), "eth0": ("192.0.2.7",)}
    monkeypatch.setattr(rendezvous, "own_addresses", lambda: here)
    monkeypatch.setattr("topout.host.nics.own_addresses", lambda: here)
    monkeypatch.setattr(rendezvous, "read_nics", lambda: ())
    monkeypatch.setattr(rendezvous, "is_this_host", lambda name: name == "n1")


def asked(name: str, origin: str = "command line") -> RunSpec:
    return RunSpec(interface=name, origins={"interface": origin})


def test_on_one_host_a_name_that_nothing_has_is_an_error_with_those_there_are():
    with pytest.raises(TopoutError, match="cannot use --interface foo") as error:
        check_interface(asked("foo"), is_on_one_host=True)
    assert (error.value.do, error.value.exit_code) == ("try one of eth0 (192.0.2.7)", 2)


@pytest.mark.parametrize("spec", [asked("eth0"), asked("lo"), RunSpec(), asked("ib0", "topout.toml:3")])
def test_what_is_there_or_meant_for_the_cluster_is_none(spec):
    check_interface(spec, is_on_one_host=True)


@pytest.mark.parametrize("origin", ["command line", "topout.toml:3"])
def test_every_one_of_several_hosts_has_it(origin):
    with pytest.raises(TopoutError, match="cannot use --interface ib0"):
        check_interface(asked("ib0", origin), is_on_one_host=False)
    check_interface(asked("eth0", origin), is_on_one_host=False)
    check_interface(RunSpec(), is_on_one_host=False)


def test_a_host_that_only_starts_the_others_need_not_have_theirs():
    assert own_interface(["n2", "n3"], "ib0") is None
    assert own_interface(["n2", "n3"], "eth0") == "eth0"
    assert own_interface(["n1", "n2"], "ib0") == "ib0", "one of those that talk over it says what is wrong"
    assert own_interface(["n1", "n2"], None) is None


def test_the_way_to_a_host_whose_name_nothing_knows_is_the_fastest_there_is(monkeypatch):
    monkeypatch.setattr(rendezvous, "_LATE_NAME_S", 0.0)

    def unknown(*_, **__):
        raise OSError("Name or service not known")

    monkeypatch.setattr(rendezvous._socket, "getaddrinfo", unknown)
    assert route_address(["n1", "n2"], None, is_told=True) == "192.0.2.7"
    monkeypatch.setattr(rendezvous, "_UNKNOWN_NAME_S", 0.0)
    with pytest.raises(TopoutError):
        route_address(["n1", "n2"], None)


def test_with_an_interface_no_name_is_asked_for(monkeypatch):
    monkeypatch.setattr(rendezvous, "resolve", None)
    assert route_address(["n1", "n2"], "eth0") == "192.0.2.7"
