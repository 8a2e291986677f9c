"""How GPUs are joined is read from the driver or the kernel, and what will cost speed is named."""

import subprocess
from pathlib import Path

import msgspec
import pytest

from tests.host.sys_trees import plant
from topout.host import nvml
from topout.host.gpu_links import GpuLinks, GpuPair, Way, read_gpu_links
from topout.host.gpu_links_report import links_in_words, links_warnings
from topout.host.nvml import NvmlView, ask_nvml
from topout.host.topology import read_host
from topout.schema.world import Core, Host

SOURCE = Path(__file__).parent / "stand_in_nvml.c"
TWO_SOCKETS = tuple(Core(index=n, physical=n, socket=n, numa=n) for n in range(2))


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nvml")
    words = ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-o", folder / "libnvidia-ml.so.1", SOURCE]
    subprocess.run(words, check=True)
    return folder


@pytest.fixture
def scene(library, monkeypatch):
    def act(name: str) -> None:
        monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
        monkeypatch.setenv("STAND_IN_NVML", name)

    return act


def nvidia_host(*uuids: str) -> Host:
    return Host(name="n1", cores=TWO_SOCKETS, memory_bytes=1, gpus=("H100",) * len(uuids), gpu_ids=uuids)


def links(num_gpus: int) -> GpuLinks:
    found = read_gpu_links(nvidia_host(*(f"GPU-{number}" for number in range(num_gpus))))
    assert found is not None
    return found


def said(found: GpuLinks, used: set[int] | None = None) -> str:
    return " | ".join(warning.what for warning in links_warnings(found, used))


# NVIDIA


def test_gpus_at_a_switch_are_joined_by_as_many_links_as_the_one_with_fewer(scene):
    scene("switch")
    found = links(4)
    assert found.links_of == {0: 12, 1: 12, 2: 11, 3: 12}
    assert {(pair.first, pair.second): pair.num_links for pair in found.pairs} == {
        (0, 1): 12, (0, 2): 11, (0, 3): 12, (1, 2): 11, (1, 3): 12, (2, 3): 11,
    }  # fmt: skip
    assert links_in_words(found) == (
        "4 GPUs: 0+1, 0+3, 1+3 by NVLink x12 through a switch; 0+2, 1+2, 2+3 by NVLink x11 through a switch"
    )
    assert said(found) == "of 12 NVLinks that others have up GPU 2 has 11, and all wait for it"
    assert said(found, {0, 1, 3}) == "", "no rank uses it"


def test_pairs_with_a_bridge_are_told_from_those_without_also_by_an_old_driver(scene):
    scene("bridge")
    found = links(4)
    assert links_in_words(found) == "4 GPUs: 0+1, 2+3 by NVLink x4; 0+2, 0+3, 1+2, 1+3 by the link between sockets"
    assert said(found) == ""


def test_gpus_are_numbered_as_the_job_sees_them(scene):
    scene("bridge")
    found = read_gpu_links(nvidia_host("GPU-3", "GPU-elsewhere", "GPU-2"))
    assert [(pair.first, pair.second, pair.way) for pair in found.pairs] == [(0, 2, Way.NVLINK)]
    assert links_in_words(found) == "2 GPUs, by NVLink x4"


def test_a_pair_without_peer_access_is_named(scene):
    scene("bus")
    found = links(2)
    assert links_in_words(found) == "2 GPUs, by the link between sockets"
    assert found.links_of is None
    assert said(found) == (
        "GPUs 0+1 cannot read each other's memory, so what they exchange goes through the host's"
    )  # fmt: skip
    assert said(found, {0}) == "", "a single rank exchanges nothing"


def test_a_switch_may_keep_gpus_apart(scene):
    scene("parted")
    (pair,) = links(2).pairs
    assert (pair.way, pair.num_links, pair.has_peer_access) == (Way.PCIE_SWITCH, None, False)


def test_one_gpu_has_links_and_no_pairs(scene):
    scene("alone")
    assert links_in_words(links(1)) == "1 GPU, 12 NVLinks up"
    assert said(links(1)) == ""


def test_where_the_driver_does_not_answer_the_kernels_list_is_all(scene, monkeypatch):
    monkeypatch.setattr(nvml, "_LIMIT_S", 1.0)
    for name in ("refused", "stuck"):
        scene(name)
        assert ask_nvml() is None
    found = links(2)
    assert (found.gpus, found.pairs) == ((), ())


def test_of_several_gpus_that_cannot_reach_each_other_one_sentence_is_enough():
    pairs = tuple(
        GpuPair(first=one, second=two, way=Way.HOST_BRIDGE, has_peer_access=False)
        for one in range(3)
        for two in range(one + 1, 3)
    )
    found = GpuLinks(gpus=(0, 1, 2), pairs=pairs)
    assert said(found).startswith("no two GPUs can read each other's memory")
    assert links_in_words(found) == "3 GPUs, every pair by a PCIe host bridge"


def test_a_gpu_without_a_link_among_gpus_with_some_is_named():
    assert "GPU 2 has none" in said(GpuLinks(gpus=(0, 1, 2), links_of={0: 4, 1: 4, 2: 0}))


# AMD, and the bus


def link(folder: Path, first: int, second: int, kind: int, megabytes_per_s: int, flags: int = 1, to: str = "io_links"):
    for one, other in ((first, second), (second, first)):
        path = folder / f"sys/class/kfd/kfd/topology/nodes/{one}/{to}/{other}/properties"
        path.parent.mkdir(parents=True)
        path.write_text(
            f"type {kind}\nnode_from {one}\nnode_to {other}\nweight 15\n"
            f"max_bandwidth {megabytes_per_s}\nflags {flags}\n"
        )


def mi250x(folder: Path, *, num_gpus: int = 4) -> tuple[Host, Path, Path]:
    roots = plant("mi250x", folder)
    return read_host({"ROCR_VISIBLE_DEVICES": ",".join(map(str, range(num_gpus)))}, *roots), *roots


def test_links_of_amd_have_the_rate_that_the_driver_gives(tmp_path):
    host, *roots = mi250x(tmp_path)
    for first, second, rate in ((4, 5, 200000), (6, 7, 200000), (4, 6, 50000), (5, 7, 0)):
        link(tmp_path, first, second, 11, rate)
    found = read_gpu_links(host, *roots)
    assert links_in_words(found) == (
        "4 GPUs: 0+1, 2+3 by XGMI, 200 GB/s; 0+2 by XGMI, 50 GB/s; 1+3 by XGMI; "
        "0+3, 1+2 by NUMA domains of a socket"
    )  # fmt: skip
    assert [pair.has_peer_access for pair in found.pairs] == [True, True, None, None, True, True]
    assert said(found) == ""


def test_a_gpu_of_amd_that_reaches_fewer_others_is_named(tmp_path):
    host, *roots = mi250x(tmp_path, num_gpus=3)
    link(tmp_path, 4, 5, 11, 200000)
    link(tmp_path, 4, 6, 2, 16000, to="p2p_links")
    (tmp_path / "sys/class/kfd/kfd/topology/nodes/5/p2p_links").mkdir()
    found = read_gpu_links(host, *roots)
    assert found.links_of == {0: 1, 1: 1, 2: 0}
    assert said(found) == (
        "GPUs 1+2 cannot read each other's memory, so what they exchange goes through the host's | "
        "of 1 GPU that others reach by XGMI GPU 2 has none, and all wait for it"
    )


def test_a_link_on_which_the_driver_forbids_peers_gives_no_access(tmp_path):
    host, *roots = mi250x(tmp_path, num_gpus=2)
    link(tmp_path, 4, 5, 2, 16000, flags=1 | 16)
    (pair,) = read_gpu_links(host, *roots).pairs
    assert (pair.way, pair.has_peer_access) == (Way.NUMA_DOMAIN, False)


def test_where_two_devices_part_on_the_bus_tells_what_is_between_them(tmp_path):
    host, sys_root, proc_root = mi250x(tmp_path, num_gpus=4)
    below_a_switch = "pci0000:c0/0000:c0:01.1/0000:c1:00.0/0000:c2:01.0"
    for bus, above in (
        ("0000:c1:00.0", below_a_switch),
        ("0000:c6:00.0", below_a_switch),
        ("0000:c9:00.0", "pci0000:c0/0000:c0:03.1"),
    ):
        place = sys_root / "bus/pci/devices" / bus
        real = sys_root / "devices" / above / bus
        real.parent.mkdir(parents=True, exist_ok=True)
        place.rename(real)
        place.symlink_to(real)
    ways = {(pair.first, pair.second): pair.way for pair in read_gpu_links(host, sys_root, proc_root).pairs}
    assert ways[0, 1] is Way.PCIE_SWITCH
    assert ways[0, 2] is Way.HOST_BRIDGE
    assert ways[2, 3] is Way.NUMA_DOMAIN


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ("epyc_8gpu", "8 GPUs: 0+1, 2+3, 4+5, 6+7 by their NUMA domain; 0+2, 0+3, 1+2, 1+3, 4+6, 4+7, 5+6, 5+7 by NUMA "
                      "domains of a socket; 16 pairs by the link between sockets"),
        ("power9_6gpu", "6 GPUs: 0+1, 0+2, 1+2, 3+4, 3+5, 4+5 by their NUMA domain; "
                        "9 pairs by the link between sockets"),
        ("virtual_machine_h200", "1 GPU"),
    ],
)  # fmt: skip
def test_without_the_drivers_library_domains_are_all_there_is(tree, words, tmp_path):
    roots = plant(tree, tmp_path)
    assert links_in_words(read_gpu_links(read_host({}, *roots), *roots)) == words


def test_a_host_without_gpus_has_nothing_to_say(tmp_path):
    assert read_gpu_links(read_host({"CUDA_VISIBLE_DEVICES": ""})) is None


def test_what_was_found_survives_json(scene):
    scene("switch")
    found = links(4)
    assert msgspec.json.decode(msgspec.json.encode(found), type=GpuLinks) == found


# this machine


@pytest.mark.gpu
def test_the_driver_answers_for_the_gpus_that_a_job_sees():
    view = ask_nvml()
    assert isinstance(view, NvmlView) and view.gpus
    host = read_host({})
    found = read_gpu_links(host)
    assert found.gpus == tuple(range(len(host.gpus)))
    assert len(found.pairs) == len(host.gpus) * (len(host.gpus) - 1) // 2
    assert all(gpu.bus_id and (Path("/sys/bus/pci/devices") / gpu.bus_id).exists() for gpu in view.gpus)
    assert all(pair.way is not Way.UNKNOWN and pair.has_peer_access is not None for pair in found.pairs)
    assert all(gpu.uuid and gpu.uuid.startswith("GPU-") for gpu in view.gpus)
    assert links_in_words(found).startswith(f"{len(host.gpus)} GPU")
