"""The host is read from the kernel's files, on this machine and on others' that were written down."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.host.sys_trees import FOLDER, NAMES, expand, plant
from topout.host import gpus, topology
from topout.host.gpus import Gpu, list_gpus, parse_listing, visible_gpus
from topout.host.topology import (
    allowed_cores,
    cgroup_folder,
    cpu_limit,
    join_hosts,
    memory_bytes,
    parse_cpu_list,
    read_cores,
    read_host,
)
from topout.launch.oom_kills import read_oom_kill
from topout.schema.world import Core, Host

GPUS = [Gpu(name=name, vendor="nvidia", uuid=f"GPU-{name.lower() * 3}") for name in "ABC"]
GIB = 1 << 30


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def names(gpus: list[Gpu]) -> str:
    return "".join(gpu.name for gpu in gpus)


def host_of(tree: str, folder: Path, **environ: str) -> Host:
    return read_host(environ, *plant(tree, folder))


# the files


def test_processor_lists_as_the_kernel_writes_them():
    assert parse_cpu_list("0-2,5\n") == [0, 1, 2, 5]
    assert parse_cpu_list("\n") == []


def test_cores_know_their_socket_and_domain(tmp_path):
    for index in range(4):
        write(tmp_path / f"devices/system/cpu/cpu{index}/topology/core_id", str(index % 2))
        write(tmp_path / f"devices/system/cpu/cpu{index}/topology/physical_package_id", str(index // 2))
    write(tmp_path / "devices/system/node/node0/cpulist", "0-1")
    write(tmp_path / "devices/system/node/node1/cpulist", "2-3")
    found = read_cores([1, 3], tmp_path)
    assert [(core.index, core.physical, core.socket, core.numa) for core in found] == [(1, 1, 0, 0), (3, 1, 1, 1)]


def test_cores_of_two_dies_with_equal_numbers_are_two_cores(tmp_path):
    for index in range(4):
        write(tmp_path / f"devices/system/cpu/cpu{index}/topology/core_id", "0")
        write(tmp_path / f"devices/system/cpu/cpu{index}/topology/core_cpus_list", f"{index % 2},{index % 2 + 2}")
    assert [core.physical for core in read_cores([0, 1, 2, 3], tmp_path)] == [0, 1, 0, 1]


def test_a_machine_that_tells_nothing_is_one_domain(tmp_path):
    assert [(core.physical, core.numa) for core in read_cores([0, 1], tmp_path)] == [(0, 0), (1, 0)]


def test_a_set_in_a_tree_stands_for_many_files():
    assert list(expand("cpu{0-1}/list", "{0,4}-{3,7}")) == [("cpu0/list", "0-3"), ("cpu1/list", "4-7")]


@pytest.mark.parametrize("tree", NAMES)
def test_every_tree_says_where_it_comes_from(tree):
    assert json.loads((FOLDER / f"{tree}.json").read_text())["about"].startswith(("Recorded on ", "Modelled from "))


# control groups


def test_control_groups_of_both_versions(tmp_path):
    write(tmp_path / "proc/self/cgroup", "0::/job/7\n")
    (tmp_path / "sys/fs/cgroup/job/7").mkdir(parents=True)
    assert cgroup_folder("memory", tmp_path / "proc", tmp_path / "sys") == str(tmp_path / "sys/fs/cgroup/job/7")
    write(tmp_path / "proc/self/cgroup", "4:memory:/job\n0::/\n")
    (tmp_path / "sys/fs/cgroup/memory").mkdir()
    assert cgroup_folder("memory", tmp_path / "proc", tmp_path / "sys") == str(tmp_path / "sys/fs/cgroup/memory")


def test_the_tightest_limit_of_all_groups_above_counts(tmp_path):
    sys_root, proc_root = tmp_path / "sys", tmp_path / "proc"
    write(proc_root / "self/cgroup", "0::/a/b/c\n")
    write(proc_root / "meminfo", "MemTotal: 8388608 kB\n")
    for folder, memory, quota in (("a/b/c", "max", "max"), ("a/b", str(2 * GIB), "400000"), ("a", str(GIB), "250000")):
        write(sys_root / "fs/cgroup" / folder / "memory.max", memory)
        write(sys_root / "fs/cgroup" / folder / "cpu.max", f"{quota} 100000")
    assert memory_bytes(sys_root, proc_root) == GIB
    assert cpu_limit(sys_root, proc_root) == 2.5


def test_limits_of_the_first_version_are_found_above_as_well(tmp_path):
    roots = plant("knl_flat", tmp_path)
    assert memory_bytes(*roots) == 64 * GIB
    assert cpu_limit(*roots) is None
    write(roots[0] / "fs/cgroup/cpu/slurm/cpu.cfs_quota_us", "6800000")
    write(roots[0] / "fs/cgroup/cpu/slurm/cpu.cfs_period_us", "100000")
    assert cpu_limit(*roots) == 68


def test_kills_are_read_from_either_version(tmp_path):
    write(tmp_path / "memory.events", "low 0\noom 3\noom_kill 2\n")
    write(tmp_path / "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n")
    assert read_oom_kill(tmp_path / "memory.events") == 2
    assert read_oom_kill(tmp_path / "memory.oom_control") == 5
    assert read_oom_kill(tmp_path / "absent") is None


# GPUs


def test_visible_devices_are_respected():
    for visible, expected in {"2,0": "CA", "GPU-bbb": "B", "": "", "-1": "", "0,9,1": "A"}.items():
        assert names(visible_gpus(GPUS, {"CUDA_VISIBLE_DEVICES": visible})) == expected
    assert names(visible_gpus(GPUS, {})) == "ABC"


def test_hip_numbers_what_rocr_left_over():
    of_amd = [Gpu(name=name, vendor="amd", uuid=f"GPU-{name}") for name in "ABCD"]
    assert names(visible_gpus(of_amd, {"ROCR_VISIBLE_DEVICES": "1,GPU-D", "HIP_VISIBLE_DEVICES": "1"})) == "D"
    assert names(visible_gpus(of_amd, {"ROCR_VISIBLE_DEVICES": "2,3", "CUDA_VISIBLE_DEVICES": "0"})) == "C"
    assert names(visible_gpus(of_amd, {"HIP_VISIBLE_DEVICES": "3", "CUDA_VISIBLE_DEVICES": "0"})) == "D"
    assert names(visible_gpus(GPUS, {"ROCR_VISIBLE_DEVICES": "2"})) == "ABC"


def test_a_mig_device_belongs_to_its_gpu_and_is_all_that_a_process_sees():
    listing = (
        "GPU 0: NVIDIA H200 (UUID: GPU-aaa)\n"
        "GPU 1: NVIDIA A30 (UUID: GPU-bbb)\n"
        "  MIG 1g.6gb      Device  0: (UUID: MIG-111)\n"
        "  MIG 1g.6gb      Device  1: (UUID: MIG-222)\n"
    )
    listed = parse_listing(listing)
    assert [(gpu.name, gpu.parts) for gpu in listed] == [("NVIDIA H200", ()), ("NVIDIA A30", ("MIG-111", "MIG-222"))]
    for visible, expected in {
        "MIG-222,MIG-111": ["NVIDIA A30"],
        "MIG-GPU-aaa/1/0,MIG-222": ["NVIDIA H200"],
        "MIG-elsewhere": ["NVIDIA H200"],
        "0": ["NVIDIA H200"],
        "0,1": ["NVIDIA A30"],
        "": [],
    }.items():
        assert [gpu.name for gpu in visible_gpus(listed, {"CUDA_VISIBLE_DEVICES": visible})] == expected
    assert [gpu.name for gpu in visible_gpus(listed, {})] == ["NVIDIA A30"]


def test_nvidia_smi_is_run_only_where_there_is_a_driver(tmp_path, monkeypatch):
    ran = tmp_path / "ran"
    write(tmp_path / "nvidia-smi", f"#!/bin/sh\ntouch {ran}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    list_gpus(Path("/sys"), Path("/proc"))
    assert ran.exists() == (Path("/proc/driver/nvidia").exists() or Path("/dev/nvidiactl").exists())


def test_gpus_are_found_where_a_device_alone_tells_of_them(tmp_path, monkeypatch):
    """As in Windows, or in a container that hides the driver's files."""
    device = tmp_path / "dxg"
    device.touch()
    for module in (topology, gpus):
        monkeypatch.setattr(module, "DEVICES_OF_NVIDIA", (str(device),))
    monkeypatch.setattr(gpus, "_ask_driver", lambda: "GPU 0: NVIDIA L4 (UUID: GPU-1)\n")
    assert (read_host({}).gpus, read_host({}).gpu_ids) == (("NVIDIA L4",), ("GPU-1",))
    assert host_of("one_core_container", tmp_path / "other").gpus == (), "another machine's devices are not here"


def test_gpus_that_a_control_group_hides_are_not_counted(tmp_path, monkeypatch):
    """The driver's files show all of them, nvidia-smi those that this process may open."""
    sys_root, proc_root = plant("epyc_8gpu", tmp_path)
    monkeypatch.setattr(gpus, "_PROC", proc_root)
    monkeypatch.setattr(gpus, "_ask_driver", lambda: "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-00000004)\n")
    assert [(gpu.uuid, gpu.numa) for gpu in list_gpus(sys_root, proc_root)] == [("GPU-00000004", 7)]


def test_gpus_of_nvidia_that_nobody_has_opened_are_still_several(tmp_path):
    for bus in ("01", "02"):
        text = "Model: \t\t NVIDIA L4\nGPU UUID: \t GPU-????????-????-????-????-????????????\n"
        write(tmp_path / f"proc/driver/nvidia/gpus/0000:{bus}:00.0/information", text)
    assert [gpu.uuid for gpu in list_gpus(tmp_path / "sys", tmp_path / "proc")] == ["", ""]
    host = read_host({}, tmp_path / "sys", tmp_path / "proc")
    assert join_hosts([host, host]).gpus == ("NVIDIA L4",) * 2


@pytest.mark.parametrize("properties", ["unique_id 0\n", "", "unique_id 77\n"])
def test_gpus_of_amd_without_a_number_of_their_own_are_still_several(tmp_path, properties):
    for node in (1, 2, 3):
        write(tmp_path / f"sys/class/kfd/kfd/topology/nodes/{node}/gpu_id", str(node))
        write(
            tmp_path / f"sys/class/kfd/kfd/topology/nodes/{node}/properties", f"gfx_target_version 110000\n{properties}"
        )
    roots = (tmp_path / "sys", tmp_path / "proc")
    assert {gpu.uuid for gpu in list_gpus(*roots)} == {"GPU-000000000000004d" if "77" in properties else ""}
    whole = read_host({}, *roots)
    assert len(join_hosts([whole, whole]).gpus) == 3
    views = [read_host({"ROCR_VISIBLE_DEVICES": str(number)}, *roots) for number in range(3)]
    assert len(join_hosts(views).gpus) == 3, "a scheduler showed each task its own"


# whole machines


def test_dual_socket_machine_with_gpus_in_every_second_domain(tmp_path):
    host = host_of("epyc_8gpu", tmp_path)
    assert (host.name, host.cpu_model, host.num_logical_cores) == ("dgx1", "AMD EPYC 7742 64-Core Processor", 256)
    assert host.numa_domains == (0, 1, 2, 3, 4, 5, 6, 7)
    assert host.cores[200] == Core(index=200, physical=72, socket=1, numa=4)
    assert host.gpus == ("NVIDIA A100-SXM4-40GB",) * 8
    assert host.gpu_numa == (3, 3, 1, 1, 7, 7, 5, 5)


def test_hidden_gpus_take_their_domains_with_them(tmp_path):
    assert host_of("epyc_8gpu", tmp_path, CUDA_VISIBLE_DEVICES="4,0").gpu_numa == (7, 3)


def test_four_hyper_threads_and_numbers_with_gaps(tmp_path):
    host = host_of("power9_6gpu", tmp_path)
    assert (host.cpu_model, len(host.cores), host.num_logical_cores) == ("POWER9", 168, 176)
    assert host.numa_domains == (0, 8)
    assert {core.physical for core in host.cores if core.numa == 8} == set(range(88, 172, 4))
    assert host.gpu_numa == (0, 0, 0, 8, 8, 8)


def test_gpus_of_amd_in_the_order_of_the_runtime(tmp_path):
    host = host_of("mi250x", tmp_path)
    assert host.gpus == ("AMD Instinct MI250X",) * 4 + ("AMD gfx90a",) * 4
    assert host.gpu_numa == (3, 3, 1, 1, 0, 0, 2, 2)
    assert host_of("mi250x", tmp_path, ROCR_VISIBLE_DEVICES="6,7").gpu_numa == (2, 2)


def test_a_gpu_whose_domain_is_memory_alone_is_near_the_domain_with_cores(tmp_path):
    host = host_of("grace_hopper", tmp_path)
    assert (host.numa_domains, host.gpu_numa, host.cpu_model) == ((0,), (0,), "Neoverse V2")


def test_fast_and_slow_cores_are_both_cores(tmp_path):
    host = host_of("hybrid_laptop", tmp_path)
    assert len({core.physical for core in host.cores}) == 12


def test_memory_without_cores_is_no_domain_to_run_in(tmp_path):
    host = host_of("knl_flat", tmp_path)
    assert (host.numa_domains, len(host.cores), len({core.physical for core in host.cores})) == ((0,), 272, 68)


def test_a_container_is_left_with_what_is_granted_and_switched_on(tmp_path):
    host = host_of("one_core_container", tmp_path)
    assert host.cores == (Core(index=9, physical=9, socket=1, numa=1),)
    assert (host.memory_bytes, host.cpu_limit, host.num_logical_cores) == (2 * GIB, 1.5, 32)


def test_a_kernel_that_does_not_know_where_the_gpu_sits(tmp_path):
    host = host_of("virtual_machine_h200", tmp_path)
    assert (host.gpus, host.gpu_numa, len(host.cores)) == (("NVIDIA H200",), (None,), 16)


def test_a_host_is_what_its_tasks_see_together():
    def view(index: int, gpus: tuple[str, ...]) -> Host:
        core = Core(index=index, physical=index, socket=0, numa=0)
        return Host(name="n1", cores=(core,), memory_bytes=1, gpus=gpus, gpu_numa=(0,) * len(gpus))

    joined = join_hosts([view(3, ()), view(1, ("A", "B")), view(1, ("A",))])
    assert ([core.index for core in joined.cores], joined.gpus, joined.gpu_numa) == ([1, 3], ("A", "B"), (0, 0))


# this machine


def test_this_host_has_cores_and_memory():
    host = read_host({"CUDA_VISIBLE_DEVICES": ""})
    assert {core.index for core in host.cores} == os.sched_getaffinity(0)
    assert host.memory_bytes > 1 << 20
    assert host.gpus == ()
    assert host.cpu_model


def test_files_and_system_call_agree_on_the_cores_of_this_process(tmp_path):
    (tmp_path / "proc").symlink_to("/proc")
    assert allowed_cores(Path("/sys"), tmp_path / "proc") == sorted(os.sched_getaffinity(0))


def test_lscpu_and_hwloc_see_the_same_machine():
    rows = subprocess.run(["lscpu", "-p=CPU,CORE,SOCKET,NODE"], capture_output=True, text=True, check=True).stdout
    theirs = [row.split(",") for row in rows.splitlines() if not row.startswith("#")]
    ours = {core.index: core for core in read_cores(parse_cpu_list(Path("/sys/devices/system/cpu/online").read_text()))}
    assert {int(row[0]) for row in theirs} == set(ours)
    for first in theirs:
        for second in theirs:
            one, other = ours[int(first[0])], ours[int(second[0])]
            assert (first[1] == second[1]) == (one.physical == other.physical and one.socket == other.socket)
            assert (first[2] == second[2]) == (one.socket == other.socket)
            assert (first[3] == second[3]) == (one.numa == other.numa)
    if shutil.which("hwloc-calc"):
        for kind, number in {
            "pu": len(ours),
            "core": len({(core.socket, core.physical) for core in ours.values()}),
            "package": len({core.socket for core in ours.values()}),
            "numanode": len({core.numa for core in ours.values()}),
        }.items():
            asked = ["hwloc-calc", "--whole-system", "--number-of", kind, "machine:0"]
            assert int(subprocess.run(asked, capture_output=True, text=True, check=True).stdout) == number
