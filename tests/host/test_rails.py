"""A rank gets an interface of its own only where the kernel would use it, and where every host has several."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from topout.host import rails
from topout.host.rails import find_rails, way_out
from topout.launch.member import Member
from topout.launch.rank_env import rank_environment
from topout.launch.roster import make_roster
from topout.schema.spec import RunSpec
from topout.schema.world import Core, Host, Nic

FAST = 100e9
NICS = tuple(Nic(name=f"eth{n}", speed_bits_per_s=FAST, numa=n, addresses=(f"10.79.0.{n + 1}",)) for n in range(2))
CORES = tuple(Core(index=n, physical=n, socket=n // 2, numa=n // 2) for n in range(4))


# what is asked of the kernel


def test_this_machine_reaches_itself_over_nothing_that_leads_out():
    assert way_out("127.0.0.1", "127.0.0.1") is None
    assert way_out("192.0.2.1", "203.0.113.9") is None, "an address that is not here"


@pytest.fixture
def routed(monkeypatch):
    """Both interfaces in one network; `out` says over which the kernel sends from an address."""

    def plan(**out: str) -> None:
        lines = ["Iface", *(f"eth{n} 00004F0A 00000000 0001 0 0 0 00FFFFFF 0 0 0" for n in range(2))]
        monkeypatch.setattr(rails, "read_text", lambda path: "\n".join(lines))
        monkeypatch.setattr(rails.socket, "if_nametoindex", lambda name: name)
        monkeypatch.setattr(rails, "way_out", lambda target, source: out.get(f"to{source[-1]}"))

    return plan


def test_two_interfaces_that_send_apart_are_two_rails(routed):
    routed(to1="eth0", to2="eth1")
    assert find_rails(NICS, "10.79.0.9", "eth0") == ("eth0", "eth1")
    assert find_rails(NICS, "10.79.0.1", "eth0") == ("eth0", "eth1"), "the host of rank 0 knows its own address alone"


@pytest.mark.parametrize(
    ("nics", "peer"),
    [
        (NICS[:1], "10.79.0.9"),
        ((NICS[0], replace(NICS[1], speed_bits_per_s=FAST / 10)), "10.79.0.9"),
        ((NICS[0], replace(NICS[1], addresses=("10.80.0.2",))), "10.79.0.9"),
        ((NICS[0], replace(NICS[1], addresses=())), "10.79.0.9"),
        (tuple(replace(nic, speed_bits_per_s=None) for nic in NICS), "10.79.0.9"),
        ((*NICS, Nic(name="ib0", speed_bits_per_s=4 * FAST, hca="mlx5_0:1")), "10.79.0.9"),
        (NICS, "192.0.2.1"),
        (NICS, "fd00::9"),
    ],
    ids=["one", "slower", "elsewhere", "no-address", "unknown", "infiniband", "gateway", "ipv6"],
)
def test_else_there_is_one(nics, peer, routed):
    routed(to1="eth0", to2="eth1")
    assert find_rails(nics, peer, "eth0") == ()


def test_what_the_kernel_sends_over_the_first_is_no_rail(routed):
    routed(to1="eth0", to2="eth0")
    assert find_rails(NICS, "10.79.0.9", "eth0") == ()


IN_NAMESPACE = """
set -e
ip link set lo up
for n in 0 1; do
    ip link add eth$n type veth peer name far$n
    ip link set eth$n up; ip link set far$n up
    ip addr add 10.79.0.$((n + 1))/24 dev eth$n
done
cat >ask.py <<END
import json
from topout.host.rails import find_rails
from topout.schema.world import Nic
nics = [Nic(name=f"eth{n}", speed_bits_per_s=1e11, addresses=(f"10.79.0.{n + 1}",)) for n in range(2)]
print(json.dumps([find_rails(nics, peer, "eth0") for peer in ("10.79.0.9", "10.79.0.1", "192.0.2.1")]))
END
"$0" ask.py
for n in 0 1; do
    ip route add 10.79.0.0/24 dev eth$n src 10.79.0.$((n + 1)) table $((n + 100))
    ip rule add from 10.79.0.$((n + 1)) table $((n + 100))
done
"$0" ask.py
"""


@pytest.mark.lab
def test_the_kernel_itself_tells_one_way_from_two(tmp_path):
    """The same two interfaces in one network, without and with rules by source address."""
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", IN_NAMESPACE, sys.executable],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        [[], [], []],
        [["eth0", "eth1"], ["eth0", "eth1"], []],
    ]


# what a rank gets


def gloo_of_ranks(*hosts: Host) -> list[tuple[str, str]]:
    members = [Member(number=number, host=host) for number, host in enumerate(hosts)]
    world = make_roster(RunSpec(per_node=2), members).world
    found = [rank_environment(rank, world, RunSpec(), 5, run=None, inherited={}) for rank in world.ranks]
    return [(variables["GLOO_SOCKET_IFNAME"], variables["NCCL_SOCKET_IFNAME"]) for variables in found]


def host(name: str, *own_rails: str) -> Host:
    return Host(
        name=name, cores=CORES, memory_bytes=1, nics=NICS, interface="eth0", address=f"10.79.0.{name[-1]}",
        rails=own_rails,
    )  # fmt: skip


def test_each_rank_has_the_nearest_for_gloo_and_all_the_same_for_nccl():
    both = ("eth0", "eth1")
    assert gloo_of_ranks(host("n1", *both), host("n2", *both)) == [("eth0", "=eth0"), ("eth1", "=eth0")] * 2


def test_where_one_host_has_a_single_way_all_use_the_jobs():
    assert gloo_of_ranks(host("n1", "eth0", "eth1"), host("n2")) == [("eth0", "=eth0")] * 4
