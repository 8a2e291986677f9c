"""File systems are named from the kernel's table, whatever lies on top of what."""

from pathlib import Path

import pytest

from topout.host.file_systems import is_network
from topout.preflight.probes.mounts import find_mount

TABLE = r"""
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 27 0:40 / /scratch rw,relatime shared:12 master:3 - lustre 10.1.1.1@o2ib:/scratch rw,flock
31 27 0:41 / /home rw,relatime - nfs4 server:/export/home rw,vers=4.2
32 30 0:42 / /scratch/local rw,relatime - xfs /dev/nvme0n1 rw
33 27 0:43 / /with\040space rw,relatime - gpfs fs1 rw
34 27 0:44 / /image rw,relatime - overlay overlay rw,lowerdir=/x
35 34 0:45 / /image rw,relatime - squashfs /dev/loop0 ro
""".lstrip()


@pytest.mark.parametrize(
    ("path", "file_system", "source"),
    [
        ("/etc/hosts", "ext4", "/dev/vda"),
        ("/scratch/me/data", "lustre", "10.1.1.1@o2ib:/scratch"),
        ("/scratch", "lustre", "10.1.1.1@o2ib:/scratch"),
        ("/scratchy/data", "ext4", "/dev/vda"),
        ("/scratch/local/data", "xfs", "/dev/nvme0n1"),
        ("/home/me", "nfs4", "server:/export/home"),
        ("/with space/data", "gpfs", "fs1"),
        ("/image/usr", "squashfs", "/dev/loop0"),
    ],
)
def test_the_mount_above_a_path_is_found(tmp_path: Path, path: str, file_system: str, source: str) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(TABLE)
    found = find_mount(path, table)
    assert found is not None
    assert (found.file_system, found.source) == (file_system, source)


def test_without_a_table_nothing_is_claimed(tmp_path: Path) -> None:
    assert find_mount("/etc", tmp_path / "none") is None


def test_this_machines_proc_is_proc() -> None:
    found = find_mount("/proc/self")
    assert found is not None and found.file_system == "proc"


def test_file_systems_of_clusters_are_known_as_shared() -> None:
    assert all(map(is_network, ("lustre", "gpfs", "nfs4", "beegfs")))
    assert not any(map(is_network, ("ext4", "xfs", "tmpfs", "overlay", None)))
