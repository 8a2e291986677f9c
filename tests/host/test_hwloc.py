"""What the kernel does not place, hwloc may; and where both speak, what differs is named."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.host.sys_trees import plant
from topout.host import hwloc, topology
from topout.host.binding import bind
from topout.host.hwloc import HwlocView, ask_hwloc, compare, place_devices, read_view
from topout.host.topology import read_cores, read_host
from topout.schema.errors import TopoutError
from topout.schema.world import Core, Host, Nic

needs_hwloc = pytest.mark.skipif(shutil.which("lstopo-no-graphics") is None, reason="hwloc-nox is not installed")
GPUS = {3: ("07", "0f"), 1: ("47", "4e"), 7: ("87", "90"), 5: ("b7", "bd")}
"""NUMA domain -> bus numbers, of the tree epyc_8gpu."""
PORTS = {3: "0c", 1: "4b", 7: "8b", 5: "ba"}
CORES = tuple(Core(index=n, physical=n // 2, socket=n // 4, numa=n // 4) for n in range(8))
HOST = Host(name="n1", cores=CORES, memory_bytes=1)
"""Two sockets, each a domain with two cores of two hyper-threads: `pack:2 numa:1 core:2 pu:2` as hwloc has it."""


def synthetic(words: str, **environ: str) -> HwlocView:
    view = ask_hwloc({"HWLOC_SYNTHETIC": words, **environ})
    assert view is not None
    return view


def device(bus: str, kind: str) -> str:
    made = f'gp_index="{9000 + int(bus, 16)}" pci_type="{kind} [10de:20b0] [0000:0000] a1" pci_link_speed="0"'
    return f'<object type="PCIDev" pci_busid="0000:{bus}:00.0" {made}/>'


def described(folder: Path) -> Path:
    """The machine of epyc_8gpu as a site may describe it: devices beside the memory of their domain."""
    words = ["lstopo-no-graphics", "--of", "xml", "-i", "pack:2 numa:4 core:16 pu:2"]
    xml = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    lines = []
    domain = -1
    for line in xml.splitlines():
        # a domain's group ends where the next one begins; its devices come last
        if 'type="Group"' in line:
            domain += 1
        if line.startswith("      </object>") and domain in GPUS:
            hanging = "".join([*(device(bus, "0302") for bus in GPUS[domain]), device(PORTS[domain], "0207")])
            bridge = f'type="Bridge" gp_index="{8000 + domain}" bridge_type="0-1" depth="0" bridge_pci="0000:[00-ff]"'
            lines.append(f"<object {bridge}>{hanging}</object>")
        lines.append(line)
    path = folder / "site.xml"
    path.write_text("\n".join(lines))
    return path


def without_places(folder: Path) -> tuple[Path, Path]:
    """epyc_8gpu with a kernel that says of no device where it sits, as in a virtual machine."""
    sys_root, proc_root = plant("epyc_8gpu", folder)
    for path in sys_root.rglob("numa_node"):
        path.write_text("-1\n")
    for number, bus in enumerate(PORTS[domain] for domain in (3, 1, 7, 5)):
        real = sys_root / f"devices/pci0000:{bus}/0000:{bus}:00.0"
        place = sys_root / f"class/infiniband/mlx5_{number}/device"
        real.parent.mkdir(parents=True)
        place.rename(real)
        place.symlink_to(real)
    carried = sys_root / "class/net/ib0/device"
    shutil.rmtree(carried)
    carried.symlink_to(sys_root / f"devices/pci0000:{PORTS[3]}/0000:{PORTS[3]}:00.0")
    return sys_root, proc_root


# placing


@needs_hwloc
def test_gpus_and_ports_that_the_kernel_does_not_place_are_where_the_site_says(tmp_path):
    roots = without_places(tmp_path)
    silent = read_host({"HWLOC_COMPONENTS": "stop"}, *roots)
    assert set(silent.gpu_numa) == {None}
    with pytest.raises(TopoutError, match="--bind gpu is not possible"):
        bind(silent, 8, policy="gpu")
    host = read_host({"HWLOC_XMLFILE": str(described(tmp_path))}, *roots)
    assert host.gpu_numa == (3, 3, 1, 1, 7, 7, 5, 5)
    ranks = bind(host, 8, policy="gpu").ranks
    assert [rank.nic.numa for rank in ranks if rank.nic] == [3, 3, 1, 1, 7, 7, 5, 5]
    assert ranks == bind(read_host({}, *plant("epyc_8gpu", tmp_path / "told")), 8, policy="gpu").ranks


@pytest.mark.parametrize("tree", ["epyc_8gpu", "virtual_machine_h200"])
def test_hwloc_is_not_asked_where_the_kernel_has_said_it_or_there_is_one_domain(tree, tmp_path, monkeypatch):
    monkeypatch.setattr(hwloc, "ask_hwloc", lambda *_: pytest.fail("asked"))
    read_host({}, *plant(tree, tmp_path))


def test_it_is_not_asked_of_a_nic_that_is_the_only_one(tmp_path, monkeypatch):
    monkeypatch.setattr(hwloc, "ask_hwloc", lambda *_: pytest.fail("asked"))
    monkeypatch.setattr(hwloc, "bus_id_of", lambda nic, root: "0000:01:00.0")
    nics = (Nic(name="ib0", hca="mlx5_0:1"), Nic(name="eth0"))
    assert place_devices([], nics, {0, 1}, {}) == ((), nics)


def test_what_is_near_to_several_domains_or_to_one_without_cores_stays_unplaced(monkeypatch):
    near = {"0000:01:00.0": frozenset({0, 1}), "0000:02:00.0": frozenset({1, 2}), "0000:03:00.0": frozenset({2})}
    monkeypatch.setattr(hwloc, "ask_hwloc", lambda *_: HwlocView(cores=(), near=near))
    gpus = [("0000:01:00.0", None), ("0000:02:00.0", None), ("0000:03:00.0", None), ("0000:04:00.0", None), ("", None)]
    assert place_devices(gpus, (), {0, 1}, {})[0] == (None, 1, None, None, None)


def test_without_hwloc_or_with_one_that_hangs_or_raves_nothing_is_known(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ask_hwloc({}) is None
    program = tmp_path / "hwloc-ls"
    for body in ("echo nonsense", "exit 1", "echo '<topology/>'", "exec /bin/sleep 60"):
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)
        monkeypatch.setattr(hwloc, "_LIMIT_S", 0.5)
        assert ask_hwloc({}) is None, body


# reading


@needs_hwloc
def test_processors_of_a_synthetic_machine():
    view = synthetic("pack:2 [numa] core:2 pu:2")
    assert [(core.index, core.physical, core.socket, core.numa) for core in view.cores] == [
        (0, 0, 0, 0), (1, 0, 0, 0), (2, 2, 0, 0), (3, 2, 0, 0), (4, 4, 1, 1), (5, 4, 1, 1), (6, 6, 1, 1), (7, 6, 1, 1),
    ]  # fmt: skip


@needs_hwloc
def test_of_fast_memory_beside_the_usual_the_first_counts():
    assert {core.numa for core in synthetic("pack:1 [numa] [numa] core:4 pu:1").cores} == {0}


def test_version_1_is_read_as_well():
    xml = """<topology><object type="Machine" os_index="0" cpuset="0x00000001,,0x00000001" nodeset="0x3">
      <object type="NUMANode" os_index="0" cpuset="0x00000001" nodeset="0x1">
        <object type="Socket" os_index="0" cpuset="0x00000001" nodeset="0x1">
          <object type="Core" os_index="0" cpuset="0x1"><object type="PU" os_index="0" cpuset="0x1"/></object></object>
        <object type="Bridge"><object type="PCIDev" pci_busid="0000:0A:00.0" pci_type="0302 [10de:1]"/></object>
      </object>
      <object type="NUMANode" os_index="1" cpuset="0x00000001,,0x0" nodeset="0x2">
        <object type="Socket" os_index="1" cpuset="0x00000001,,0x0" nodeset="0x2"><object type="Core" os_index="0"
          cpuset="0x00000001,,0x0"><object type="PU" os_index="64" cpuset="0x00000001,,0x0"/></object></object></object>
      <object type="Bridge"><object type="PCIDev" pci_busid="0000:0b:00.0" pci_type="0200 [8086:1]"/>
        <object type="PCIDev" pci_busid="0000:0c:00.0" pci_type="0106 [8086:2]"/></object>
    </object></topology>"""
    view = read_view(xml)
    assert view.cores == (
        Core(index=0, physical=0, socket=0, numa=0),
        Core(index=64, physical=64, socket=1, numa=1),
    )
    assert view.near == {"0000:0a:00.0": {0}, "0000:0b:00.0": frozenset()}, "a disk decides nothing"


# comparing


@needs_hwloc
def test_equal_views_are_equal_whatever_they_call_the_parts():
    opinion = compare(HOST, synthetic("pack:2 [numa] core:2 pu:2"))
    assert (opinion.words, opinion.differences) == ("2 sockets, 2 NUMA domains, 4 cores", ())


@needs_hwloc
def test_what_differs_is_named():
    assert compare(HOST, synthetic("pack:1 [numa] core:4 pu:2")).differences == (
        "2 sockets by the kernel, 1 by hwloc",
        "2 NUMA domains by the kernel, 1 by hwloc",
    )
    assert compare(HOST, synthetic("pack:2 [numa] core:4 pu:1")).differences == ("4 cores by the kernel, 8 by hwloc",)
    assert compare(HOST, synthetic("pack:1 [numa] core:2 pu:2")).differences == (
        "of 8 granted processors hwloc shows 4",
    )
    across = synthetic("pack:2 core:2 pu:2(indexes=0,2,1,3,4,6,5,7) ")
    assert "the cores have other processors by hwloc than by the kernel" in compare(HOST, across).differences


@needs_hwloc
def test_what_is_not_granted_is_not_compared():
    granted = Host(name="n1", cores=CORES[4:6], memory_bytes=1)
    opinion = compare(granted, synthetic("pack:2 [numa] core:2 pu:2"))
    assert (opinion.words, opinion.differences) == ("1 socket, 1 NUMA domain, 1 core", ())


def test_a_device_in_another_domain_is_named(tmp_path):
    for bus, domain in (("01", "0"), ("02", "1"), ("03", "-1")):
        path = tmp_path / f"bus/pci/devices/0000:{bus}:00.0/numa_node"
        path.parent.mkdir(parents=True)
        path.write_text(domain)
    near = {f"0000:0{number}:00.0": frozenset({1}) for number in (1, 2, 3)}
    (said,) = compare(HOST, HwlocView(cores=CORES, near=near), tmp_path).differences
    assert said == "0000:01:00.0 is near NUMA domain 0 by the kernel, 1 by hwloc"


@needs_hwloc
def test_on_this_machine_they_agree():
    host = read_host({})
    view = ask_hwloc()
    assert view is not None
    assert compare(host, view).differences == ()
    assert {core.index for core in view.cores} >= {core.index for core in read_cores(topology.allowed_cores())}
