"""The host is read from the kernel's files, and GPUs as CUDA would number them."""

from pathlib import Path

from topout.launch.oom_kills import read_oom_kill
from topout.launch.topology import cgroup_folder, parse_cpu_list, read_cores, read_host, visible_gpus

GPUS = [("A", "GPU-aaa"), ("B", "GPU-bbb"), ("C", "GPU-ccc")]


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


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


def test_a_machine_that_tells_nothing_is_one_domain(tmp_path):
    assert [(core.physical, core.numa) for core in read_cores([0, 1], tmp_path)] == [(0, 0), (1, 0)]


def test_control_groups_of_both_versions(tmp_path):
    write(tmp_path / "proc/self/cgroup", "0::/job/7\n")
    (tmp_path / "sys/fs/cgroup/job/7").mkdir(parents=True)
    assert cgroup_folder("memory", tmp_path / "proc", tmp_path / "sys") == tmp_path / "sys/fs/cgroup/job/7"
    write(tmp_path / "proc/self/cgroup", "4:memory:/job\n0::/\n")
    (tmp_path / "sys/fs/cgroup/memory").mkdir()
    assert cgroup_folder("memory", tmp_path / "proc", tmp_path / "sys") == tmp_path / "sys/fs/cgroup/memory"


def test_kills_are_read_from_either_version(tmp_path):
    write(tmp_path / "memory.events", "low 0\noom 3\noom_kill 2\n")
    write(tmp_path / "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n")
    assert read_oom_kill(tmp_path / "memory.events") == 2
    assert read_oom_kill(tmp_path / "memory.oom_control") == 5
    assert read_oom_kill(tmp_path / "absent") is None


def test_visible_devices_are_respected():
    assert visible_gpus(GPUS, None) == ("A", "B", "C")
    assert visible_gpus(GPUS, "2,0") == ("C", "A")
    assert visible_gpus(GPUS, "GPU-bbb") == ("B",)
    assert visible_gpus(GPUS, "") == ()
    assert visible_gpus(GPUS, "-1") == ()
    assert visible_gpus(GPUS, "0,9,1") == ("A",)


def test_this_host_has_cores_and_memory():
    host = read_host({"CUDA_VISIBLE_DEVICES": ""})
    assert host.cores
    assert host.memory_bytes > 1 << 20
    assert host.gpus == ()
