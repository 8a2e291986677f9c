"""What a rank may still take: of what is free on the host, and what its control groups have left."""

import pytest

from topout.host.memory_room import free_bytes

GIB = 1 << 30
FREE_ON_THE_HOST = 240 * GIB


@pytest.fixture
def roots(tmp_path):
    write(tmp_path / "proc/meminfo", f"MemTotal: {256 * GIB // 1024} kB\nMemAvailable: {FREE_ON_THE_HOST // 1024} kB\n")
    return tmp_path / "sys", tmp_path / "proc"


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_without_limits_it_is_what_is_free_on_the_host(roots):
    assert free_bytes(*roots) == FREE_ON_THE_HOST


def test_what_a_job_has_taken_of_its_grant_counts_without_what_is_cache(roots):
    write(roots[1] / "self/cgroup", "0::/slurm/job/step\n")
    for folder, limit, taken, cached in (("slurm/job", "16", "15", "2"), ("slurm/job/step", "64", "15", "2")):
        group = roots[0] / "fs/cgroup" / folder
        write(group / "memory.max", f"{int(limit) * GIB}\n")
        write(group / "memory.current", f"{int(taken) * GIB}\n")
        write(group / "memory.stat", f"anon 1\ninactive_file {int(cached) * GIB}\nactive_file {GIB}\n")
    assert free_bytes(*roots) == 4 * GIB


def test_groups_of_the_first_version_have_other_names(roots):
    write(roots[1] / "self/cgroup", "4:memory:/job\n0::/\n")
    group = roots[0] / "fs/cgroup/memory/job"
    write(group / "memory.limit_in_bytes", f"{16 * GIB}\n")
    write(group / "memory.usage_in_bytes", f"{15 * GIB}\n")
    write(group / "memory.stat", f"inactive_file 1\ntotal_inactive_file {GIB}\n")
    assert free_bytes(*roots) == 2 * GIB


def test_a_group_that_does_not_say_what_it_has_taken_limits_all_the_same(roots):
    write(roots[1] / "self/cgroup", "0::/job\n")
    write(roots[0] / "fs/cgroup/job/memory.max", f"{16 * GIB}\n")
    assert free_bytes(*roots) == 16 * GIB


def test_a_group_without_a_limit_and_one_that_is_over_it(roots):
    write(roots[1] / "self/cgroup", "0::/job\n")
    write(roots[0] / "fs/cgroup/job/memory.max", "max\n")
    write(roots[0] / "fs/cgroup/job/memory.current", f"{GIB}\n")
    assert free_bytes(*roots) == FREE_ON_THE_HOST
    write(roots[0] / "fs/cgroup/job/memory.max", f"{GIB // 2}\n")
    assert free_bytes(*roots) == 0
