"""The bindings report shows every rank once, says what costs speed, and stays short on a thousand hosts."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.host.sys_trees import NAMES, plant
from topout.host import wiring
from topout.host.binding import bind, ranks_per_host
from topout.host.bindings_report import WIDTH, bindings_report, bindings_warnings, host_ranges, ranges
from topout.host.gpu_links import GpuLinks, GpuPair, Way
from topout.host.hwloc import HwlocView
from topout.host.topology import read_host
from topout.schema.world import Core, Host, Nic, Rank, World

CORES = tuple(Core(index=n, physical=n % 4, socket=n % 4 // 2, numa=n % 4 // 2) for n in range(8))
"""Two sockets of two cores with two hyper-threads each: 0,1,4,5 and 2,3,6,7."""
HOST = Host(name="n1", cores=CORES, memory_bytes=1, num_logical_cores=8)


def rank(number: int, cores: tuple[int, ...], **more) -> Rank:
    numa = tuple(sorted({CORES[core].numa for core in cores}))
    return Rank(**{
        "rank": number, "local_rank": number, "node_rank": 0, "host": "n1", "cores": cores, "numa": numa,
        "num_threads": 2, **more,
    })  # fmt: skip


def world(*ranks: Rank, hosts: tuple[Host, ...] = (HOST,)) -> World:
    return World(hosts=hosts, ranks=ranks, master_address="", master_port=0)


def warnings(*ranks: Rank, host: Host = HOST, **environ: str) -> str:
    return "\n".join(bindings_warnings(world(*ranks, hosts=(host,)), environ))


WELL = (rank(0, (0, 1, 4, 5)), rank(1, (2, 3, 6, 7)))


def on_many_hosts(num_hosts: int) -> World:
    hosts = tuple(replace(HOST, name=f"n{n}", address=f"10.0.0.{n}") for n in range(1, num_hosts + 1))
    ranks = [
        replace(own, rank=2 * node + own.rank, node_rank=node, host=host.name, port=4000 + node)
        for node, host in enumerate(hosts)
        for own in WELL
    ]
    return world(*ranks, hosts=hosts)


# the table


def test_a_row_for_every_rank():
    gpus = replace(HOST, gpus=("A", "B"), gpu_numa=(0, 1))
    nic = Nic(name="ib1", numa=1, hca="mlx5_1:1")
    shown = bindings_report(
        world(rank(0, (0, 1, 4, 5), gpu=0), rank(1, (2, 3, 6, 7), gpu=1, nic=nic), hosts=(gpus,)), {}
    )
    assert shown.splitlines() == [
        "Bindings of 2 ranks on 1 host",
        "",
        "rank  host  cores    socket  NUMA  threads  GPU (NUMA)  NIC (NUMA)",
        "0     n1    0-1,4-5  0       0     2        0 (0)",
        "1     n1    2-3,6-7  1       1     2        1 (1)       mlx5_1:1 (1)",
        "",
        "Nothing to warn of.",
    ]


def test_ranks_that_are_not_bound_say_so_and_warn_of_nothing():
    free = [rank(n, (), numa=()) for n in range(2)]
    shown = bindings_report(world(*free), {})
    assert "0     n1    not bound  2" in shown
    assert "Nothing to warn of." in shown


def test_hosts_that_look_alike_are_shown_once():
    shown = bindings_report(on_many_hosts(512), {})
    assert "n[2-512] as n1; these hosts have ranks 0-1023" in shown
    assert len(shown.splitlines()) < 10


def test_a_host_that_differs_is_shown_by_itself():
    several = on_many_hosts(4)
    ranks = tuple(replace(own, cores=(0,)) if own.rank == 5 else own for own in several.ranks)
    shown = bindings_report(replace(several, ranks=ranks), {})
    assert "n[2,4] as n1; these hosts have ranks 0-3,6-7" in shown
    assert "5     n3    0 " in shown
    assert "n3: rank 5 has one core while" in shown


@pytest.mark.parametrize("tree", NAMES)
def test_no_line_is_too_wide(tree, tmp_path: Path):
    host = replace(read_host({}, *plant(tree, tmp_path)), name="a-host-with-a-long-name-07")
    for policy in ("auto", "node"):
        ranks = bind(host, ranks_per_host(host, None), policy=policy).ranks
        shown = bindings_report(world(*ranks, hosts=(host,)), {"OMP_PROC_BIND": "close"})
        assert max(map(len, shown.splitlines())) <= WIDTH
        assert len([line for line in shown.splitlines() if host.name in line]) == len(ranks)


# what this host says of itself


def test_what_lies_between_gpus_and_what_hwloc_sees_follow_the_table(monkeypatch):
    links = GpuLinks(gpus=(0, 1), pairs=(GpuPair(first=0, second=1, way=Way.NVLINK, num_links=4),))
    monkeypatch.setattr(wiring, "read_gpu_links", lambda host: links)
    monkeypatch.setattr(wiring, "ask_hwloc", lambda: HwlocView(cores=CORES, near={}))
    own = wiring.read_wiring(HOST, WELL, is_only_host=True)
    shown = bindings_report(world(*WELL), {}, own)
    assert shown.splitlines()[-5:] == [
        "",
        "2 GPUs, by NVLink x4.",
        "hwloc sees the same: 2 sockets, 2 NUMA domains, 4 cores.",
        "",
        "Nothing to warn of.",
    ]


def test_what_is_amiss_between_gpus_that_ranks_use_is_a_warning(monkeypatch):
    pair = GpuPair(first=0, second=1, way=Way.HOST_BRIDGE, has_peer_access=False)
    monkeypatch.setattr(wiring, "read_gpu_links", lambda host: GpuLinks(gpus=(0, 1), pairs=(pair,)))
    monkeypatch.setattr(wiring, "ask_hwloc", lambda: HwlocView(cores=CORES[:4], near={}))
    ranks = [replace(own, gpu=0, gpu_on_host=own.rank) for own in WELL]
    own = wiring.read_wiring(HOST, ranks, is_only_host=False)
    shown = " ".join(bindings_report(world(*ranks), {}, own).split())
    assert "n1: 2 GPUs, by a PCIe host bridge." in shown
    assert "! n1: GPUs 0+1 cannot read each other's memory" in shown
    assert "! n1: hwloc and the kernel differ: of 8 granted processors hwloc shows 4." in shown
    assert wiring.read_wiring(HOST, ranks[:1], is_only_host=True).warnings[0].startswith("hwloc"), "one rank, no peer"


# warnings


def test_a_good_binding_warns_of_nothing():
    assert warnings(*WELL) == ""


def test_cores_of_two_ranks_are_named():
    found = warnings(rank(0, (0, 1, 4, 5)), rank(1, (1, 5)), rank(2, (2, 3, 6, 7)))
    assert "ranks 0-1 share cores 1,5" in found


def test_hyper_threads_of_one_core_are_named():
    found = warnings(rank(0, (0, 1)), rank(1, (4, 5)), rank(2, (2, 3, 6, 7)))
    assert "ranks 0-1 sit on hyper-threads of the same cores (0-1,4-5)" in found


def test_a_gpu_in_another_domain_is_named():
    host = replace(HOST, gpus=("A", "B"), gpu_numa=(1, 1))
    found = warnings(*(replace(own, gpu=own.rank) for own in WELL), host=host)
    assert "rank 0: the GPU sits in another NUMA domain than the cores (rank 0: GPU 0 in 1, cores in 0)" in found
    assert "--bind gpu" in found


def test_a_gpu_is_looked_up_where_the_host_has_it_also_by_tasks_that_see_it_as_their_first():
    host = replace(HOST, gpus=("A", "B"), gpu_numa=(0, 1))
    ranks = [replace(own, gpu=0, gpu_on_host=own.rank) for own in WELL]
    assert warnings(*ranks, host=host) == ""
    assert [line.split()[-1] for line in bindings_report(world(*ranks, hosts=(host,)), {}).splitlines()[3:5]] == [
        "(0)",
        "(1)",
    ]


def test_a_nic_in_another_domain_is_named_where_one_is_nearer():
    nics = tuple(Nic(name=f"ib{n}", speed_bits_per_s=1e11, numa=n) for n in range(2))
    ranks = (replace(WELL[0], nic=nics[1]), WELL[1])
    assert "rank 0: ib1 in 1, cores in 0" in warnings(*ranks, host=replace(HOST, nics=nics))
    assert warnings(*ranks, host=replace(HOST, nics=nics[1:])) == ""


def test_openmp_variables_that_narrow_a_rank_are_named():
    assert "OMP_PROC_BIND=close OMP_PLACES=cores narrows" in warnings(*WELL, OMP_PROC_BIND="close", OMP_PLACES="cores")
    assert "KMP_AFFINITY=compact" in warnings(*WELL, KMP_AFFINITY="compact")
    assert warnings(*WELL, OMP_PROC_BIND="false", KMP_AFFINITY="disabled", OMP_NUM_THREADS="4") == ""


def test_a_control_group_of_one_core_is_named():
    one = replace(HOST, cores=CORES[:1])
    assert "granted one core of 8" in warnings(rank(0, (0,)), host=one)
    assert "granted 0.5 cores' worth of time of 8" in warnings(*WELL, host=replace(HOST, cpu_limit=0.5))
    assert warnings(rank(0, (0,)), host=replace(one, num_logical_cores=1)) == ""


def test_a_rank_with_one_core_beside_idle_ones_is_named():
    found = warnings(rank(0, (0, 4)), rank(1, (2, 3, 6, 7)))
    assert "rank 0 has one core while 2 granted ones lie idle" in found
    assert "no rank has cores 1,5 (2 of 8 granted)" in found


def test_tasks_that_a_scheduler_left_one_core_each_are_named():
    host = replace(HOST, cores=CORES[:2])
    found = warnings(rank(0, (0,)), rank(1, (1,)), host=host)
    assert "ranks 0-1 have one core each while the host has 8" in found
    assert "srun --cpus-per-task" in found


def test_cores_that_are_not_granted_are_counted():
    host = replace(HOST, num_logical_cores=32)
    assert "8 of 32 logical cores are granted to this job" in warnings(*WELL, host=host)


def test_equal_warnings_of_many_hosts_are_said_once():
    many = on_many_hosts(300)
    ranks = tuple(own for own in many.ranks if own.local_rank == 0)
    (found,) = bindings_warnings(replace(many, ranks=ranks), {})
    assert found == "n[1-300]: no rank has cores 2-3,6-7 (4 of 8 granted): they stay idle."


# names


def test_numbers_as_ranges():
    assert ranges([3, 1, 2, 8]) == "1-3,8"
    assert ranges([]) == ""


def test_host_names_as_schedulers_write_them():
    assert host_ranges(["n01", "n02", "n03", "login", "gpu-a1-ib0", "n7"]) == "n[01-03],login,gpu-a1-ib0,n7"
    assert host_ranges(["r1n1", "r1n2", "r2n1"]) == "r1n[1-2],r2n1"
