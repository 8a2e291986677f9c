"""How a folder's files are spread over the servers of a parallel file system, before the first one is written.

On Lustre a file lies on one server unless told otherwise, and a shard read by a hundred ranks then comes from one. GPFS
spreads every file by itself. Not for local disks, which have no such choice.
"""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

LUSTRE = 0x0BD00BD0
GPFS = 0x47504653
_STATFS_BYTES = 256
_STRIPE_BYTES = 4 << 20
_MOST_STRIPES = 8


def file_system_type(path: Path) -> int | None:
    """The magic number statfs gives; None where it cannot be asked."""
    buffer = ctypes.create_string_buffer(_STATFS_BYTES)
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "statfs") or libc.statfs(os.fsencode(path), buffer) != 0:
        return None
    # f_type is the first member, a long
    return int.from_bytes(buffer.raw[: ctypes.sizeof(ctypes.c_long)], "little") & 0xFFFFFFFF


def stripe_command(folder: Path, shard_bytes: int) -> list[str]:
    """About 32 MiB of a shard on each server, at most eight: enough to share the load, few enough to find quickly."""
    count = max(1, min(_MOST_STRIPES, shard_bytes // (32 << 20)))
    return ["lfs", "setstripe", "-c", str(count), "-S", str(_STRIPE_BYTES), os.fspath(folder)]


def arrange(folder: Path, shard_bytes: int, ask_type: Callable[[Path], int | None] = file_system_type) -> str | None:
    """Sets the striping of a new folder; what was done or is proposed, in words, None where there is nothing to say."""
    kind = ask_type(folder)
    if kind == GPFS:
        return "GPFS spreads files over its servers by itself; no striping is needed."
    if kind != LUSTRE:
        return None
    command = stripe_command(folder, shard_bytes)
    words = " ".join(command)
    if shutil.which("lfs") is None:
        return f"{folder} lies on Lustre and lfs is not installed here. Proposed, on a node that has it: {words}"
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return f"Lustre refused the striping ({done.stderr.strip()}). Proposed: {words}"
    return f"Lustre: {words}"
