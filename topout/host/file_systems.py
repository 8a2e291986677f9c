"""Kinds of file systems, by the names that Linux gives them.

Not which one a path lies on; `preflight.probes.mounts` finds that out on the host.
"""

NETWORK = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "cvmfs2", "dvs", "fuse.ceph-fuse", "fuse.dfuse", "fuse.glusterfs",
    "fuse.juicefs", "fuse.sshfs", "gpfs", "lustre", "nfs", "nfs4", "orangefs", "panfs", "pvfs2", "quobyte", "smb3",
    "virtiofs", "wekafs",
})  # fmt: skip
"""Served by others, over a network."""


def is_network(file_system: str | None) -> bool:
    """What other hosts see too, and what a crowd of clients slows down."""
    return file_system in NETWORK
