"""Interfaces are read as they are, and the one that others can reach is chosen."""

import json
import socket
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.host.sys_trees import plant
from topout.host import nics
from topout.host.nics import (
    choose_interface,
    comparable_nics,
    faster_neighbour,
    inner_addresses,
    nearest_nic,
    nic_variables,
    own_addresses,
    read_nics,
)
from topout.schema.errors import TopoutError
from topout.schema.world import Core, Host, Nic

GBIT = 1e9
IB = tuple(Nic(name=f"ib{n}", speed_bits_per_s=200 * GBIT, numa=n, hca=f"mlx5_{n}:1") for n in range(2))
SLOW_PORT = Nic(name="ens5", speed_bits_per_s=25 * GBIT, numa=0, hca="mlx5_4:1")
TWO_SOCKETS = tuple(Core(index=n, physical=n, socket=n // 4, numa=n // 2) for n in range(8))


def host(*nics: Nic) -> Host:
    return Host(name="n1", cores=TWO_SOCKETS, memory_bytes=1, nics=nics)


def nics_of(tree: str, folder: Path) -> dict[str, Nic]:
    return {nic.name: nic for nic in read_nics(plant(tree, folder)[0])}


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


# reading


def test_infiniband_ports_come_first_with_their_rate_and_domain(tmp_path):
    found = nics_of("epyc_8gpu", tmp_path)
    assert list(found) == ["ib0", "mlx5_1:1", "mlx5_2:1", "mlx5_3:1", "ens5", "veth1"]
    assert found["ib0"] == Nic(name="ib0", speed_bits_per_s=200 * GBIT, numa=3, hca="mlx5_0:1")
    assert found["mlx5_2:1"] == Nic(name="mlx5_2:1", speed_bits_per_s=200 * GBIT, numa=7, hca="mlx5_2:1")
    assert (found["ens5"].speed_bits_per_s, found["ens5"].hca) == (25 * GBIT, "mlx5_4:1")


def test_what_is_down_or_leads_nowhere_is_left_out(tmp_path):
    found = nics_of("epyc_8gpu", tmp_path)
    assert not {"lo", "eno1", "docker0", "mlx5_5:1"} & set(found)


def test_a_made_up_speed_is_not_believed(tmp_path):
    """A veth says 10 Gbit/s whatever carries it."""
    assert nics_of("epyc_8gpu", tmp_path)["veth1"].speed_bits_per_s is None
    assert nics_of("one_core_container", tmp_path / "b")["eth0"].speed_bits_per_s is None


def test_a_speed_that_is_not_told_is_not_zero(tmp_path):
    assert nics_of("virtual_machine", tmp_path) == {"eth0": Nic(name="eth0")}


def test_ports_are_ordered_by_number(tmp_path):
    for number in (2, 10):
        port = tmp_path / f"class/infiniband/mlx5_{number}/ports/1"
        write(port / "state", "4: ACTIVE")
        write(port / "rate", "400 Gb/sec (4X NDR)")
    assert [nic.name for nic in read_nics(tmp_path)] == ["mlx5_2:1", "mlx5_10:1"]


def test_a_bond_has_the_hardware_below_it(tmp_path):
    for name, speed in (("bond0", "50000"), ("ens1", "25000")):
        write(tmp_path / f"class/net/{name}/flags", "0x1003")
        write(tmp_path / f"class/net/{name}/speed", speed)
    (tmp_path / "class/net/bond0/lower_ens1").mkdir()
    (tmp_path / "class/net/ens1/master").symlink_to(tmp_path / "class/net/bond0")
    write(tmp_path / "class/net/ens1/device/numa_node", "1")
    assert read_nics(tmp_path)[0] == Nic(name="bond0", speed_bits_per_s=50 * GBIT, numa=1)


def test_this_machines_interfaces_have_its_addresses():
    assert "127.0.0.1" in own_addresses()["lo"]
    assert all(nic.addresses or nic.hca for nic in read_nics())


def test_a_bridge_to_containers_alone_has_inner_addresses(tmp_path, monkeypatch):
    for name in ("docker0", "br0"):
        (tmp_path / f"class/net/{name}/bridge").mkdir(parents=True)
    (tmp_path / "class/net/br0/lower_eth0").mkdir()
    (tmp_path / "class/net/eth0/device").mkdir(parents=True)
    seen = {"docker0": "172.17.0.1", "br0": "10.0.0.5", "eth0": "10.1.0.5"}
    kernel = {name: nics._Interface(flags=1, addresses=(address,)) for name, address in seen.items()}
    monkeypatch.setattr(nics, "_SYS", str(tmp_path))
    monkeypatch.setattr(nics, "_ask_kernel", lambda: kernel)
    assert inner_addresses() == {"172.17.0.1"}


# choosing


def test_an_interface_that_is_not_there_is_named_with_those_that_are():
    nics = (Nic(name="ib0", addresses=("10.1.0.5",)), Nic(name="ib1"))
    with pytest.raises(TopoutError) as caught:
        choose_interface(nics, [], "ib7")
    assert caught.value.problem.endswith("cannot use --interface ib7.")
    assert "ib0 (10.1.0.5)" in caught.value.do
    with pytest.raises(TopoutError, match="ib1 has no address"):
        choose_interface(nics, [], "ib1")
    assert choose_interface(nics, ["10.9.9.9"], "ib0") == ("10.1.0.5", "ib0")


def test_the_loopback_is_never_chosen():
    """Names in /etc/hosts often lead to 127.0.1.1."""
    nics = (Nic(name="ib0", addresses=("10.1.0.5",)),)
    assert choose_interface(nics, ["127.0.1.1"]) == ("10.1.0.5", "ib0")
    with pytest.raises(TopoutError):
        choose_interface(nics, ["127.0.0.1"], "lo")


def route(device: str, network: str, mask: str, gateway: str = "0.0.0.0", flags: int = 1) -> str:
    numbers = (struct.unpack("=I", socket.inet_aton(text))[0] for text in (network, gateway))
    masked = struct.unpack("=I", socket.inet_aton(mask))[0]
    first, second = numbers
    return f"{device}\t{first:08X}\t{second:08X}\t{flags:04X}\t0\t0\t0\t{masked:08X}\t0\t0\t0"


def test_of_several_on_the_peers_network_the_fastest_is_chosen():
    nics = (
        Nic(name="ib0", speed_bits_per_s=200 * GBIT, addresses=("10.1.0.6",)),
        Nic(name="eth0", speed_bits_per_s=GBIT, addresses=("10.1.0.5",)),
        Nic(name="eth1", speed_bits_per_s=400 * GBIT, addresses=("10.2.0.5",)),
    )
    routes = "\n".join([
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT",
        route("eth0", "0.0.0.0", "0.0.0.0", "10.1.0.1", 3),
        route("eth0", "10.1.0.0", "255.255.0.0"),
        route("ib0", "10.1.0.0", "255.255.0.0"),
        route("eth1", "10.2.0.0", "255.255.0.0"),
    ])  # fmt: skip
    assert faster_neighbour(nics, routes, "10.1.3.4", "10.1.0.5", "eth0") == ("10.1.0.6", "ib0")
    # through a gateway the kernel knows better
    assert faster_neighbour(nics, routes, "192.0.2.1", "10.1.0.5", "eth0") == ("10.1.0.5", "eth0")
    assert faster_neighbour(nics, routes, "fd00::1", "fd00::5", "eth0") == ("fd00::5", "eth0")


IN_NAMESPACE = """
set -e
ip link set lo up
ip link add eth0 type veth peer name far0
ip link add eth7 type veth peer name far7
ip addr add 10.79.0.1/24 dev eth0
ip addr add 10.80.0.1/24 dev eth7
for name in eth0 far0 eth7 far7; do ip link set $name up; done
exec "$0" -c 'import json
from topout.host.nics import choose_interface, read_nics
nics = read_nics()
chosen = [choose_interface(nics, [peer]) for peer in ("10.79.0.2", "10.80.0.2", "10.79.0.1")]
print(json.dumps([[(nic.name, nic.speed_bits_per_s, nic.addresses) for nic in nics], chosen]))'
"""


@pytest.mark.lab
def test_in_a_network_namespace_its_own_interfaces_are_seen_and_the_route_decides():
    """/sys still shows the interfaces outside, as under a scheduler that was started with nsenter."""
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", IN_NAMESPACE, sys.executable], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    nics, chosen = json.loads(done.stdout)
    assert nics == [["eth0", None, ["10.79.0.1"]], ["eth7", None, ["10.80.0.1"]]]
    assert chosen == [["10.79.0.1", "eth0"], ["10.80.0.1", "eth7"], ["10.79.0.1", "eth0"]]


# nearest


def test_the_nearest_is_in_the_domain_else_on_the_socket_else_anywhere():
    far = Nic(name="ib9", speed_bits_per_s=200 * GBIT, numa=3, hca="mlx5_9:1")
    assert nearest_nic(host(*IB, far), [1]) == IB[1]
    assert nearest_nic(host(*IB, far), [2]) == far
    assert nearest_nic(host(*IB), [3], turn=1) == IB[1]


def test_a_port_for_management_is_not_nearest():
    assert comparable_nics([*IB, SLOW_PORT]) == IB
    assert nearest_nic(host(SLOW_PORT, *IB), [0]) == IB[0]


def test_of_infiniband_and_roce_the_faster_kind_counts_else_the_one_with_more_ports():
    """They do not reach each other: ports for storage must not be in one list with those for training."""
    storage = tuple(replace(nic, name=f"eth{n}", hca=f"mlx5_{n + 6}:1", is_roce=True) for n, nic in enumerate(IB))
    assert comparable_nics([*IB, storage[0]]) == IB
    assert comparable_nics([IB[0], *storage]) == storage
    assert comparable_nics([*IB, *storage]) == IB
    assert comparable_nics([*IB, replace(storage[0], speed_bits_per_s=400 * GBIT)])[0].name == "eth0"
    assert nic_variables(None, "eth0", [*IB, storage[0]])["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_1:1"


def test_a_port_that_speaks_ethernet_is_told(tmp_path):
    assert [nic.is_roce for nic in nics_of("epyc_8gpu", tmp_path).values() if nic.hca] == [False] * 4 + [True]


def test_a_rank_that_is_spread_over_sockets_has_no_nearest():
    assert nearest_nic(host(*IB), [0, 3]) is None
    assert nearest_nic(host(IB[0]), [0]) is None


# variables


def test_sockets_go_over_the_jobs_interface_and_ucx_over_the_nearest_port():
    assert nic_variables(IB[1], "eth0", [*IB, SLOW_PORT]) == {
        "GLOO_SOCKET_IFNAME": "eth0",
        "TP_SOCKET_IFNAME": "eth0",
        "NCCL_SOCKET_IFNAME": "=eth0",
        "NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1",
        "UCX_NET_DEVICES": "mlx5_1:1",
    }


def test_nccl_sees_the_same_ports_in_every_rank_of_a_host():
    of_ranks = {nic_variables(nic, "ib0", IB)["NCCL_IB_HCA"] for nic in (*IB, None)}
    assert of_ranks == {"=mlx5_0:1,mlx5_1:1"}


def test_without_infiniband_nothing_is_said_about_it():
    plain = Nic(name="hsn0", speed_bits_per_s=200 * GBIT, numa=0)
    assert set(nic_variables(plain, "hsn0", [plain])) == {
        "GLOO_SOCKET_IFNAME",
        "TP_SOCKET_IFNAME",
        "NCCL_SOCKET_IFNAME",
    }
    assert nic_variables(None, None) == {}
