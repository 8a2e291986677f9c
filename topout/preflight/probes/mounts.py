"""Which file system a path lies on, from /proc/self/mountinfo: no command, and right inside containers too.

Not how fast it is; `storage` tries that out.
"""

import re
from dataclasses import dataclass
from pathlib import Path

_TABLE = Path("/proc/self/mountinfo")


@dataclass(frozen=True, kw_only=True)
class Mount:
    """One mounted file system."""

    point: str
    file_system: str
    source: str


def find_mount(path: str | Path, table: Path = _TABLE) -> Mount | None:
    """The mount that `path` lies on: the longest mount point above it, the last one where several lie on each other."""
    resolved = _resolved(path)
    best = None
    for mount in read_mounts(table):
        is_above = resolved == mount.point or resolved.startswith(mount.point.rstrip("/") + "/")
        if is_above and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def read_mounts(table: Path = _TABLE) -> list[Mount]:
    try:
        lines = table.read_text(errors="replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        # optional fields stand before the lone dash, so only what follows it has a fixed place
        left, dash, right = line.partition(" - ")
        head, tail = left.split(), right.split()
        if dash and len(head) >= 5 and len(tail) >= 2:
            found.append(Mount(point=_plain(head[4]), file_system=tail[0], source=_plain(tail[1])))
    return found


def _plain(text: str) -> str:
    r"""The kernel writes a space as \040."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def _resolved(path: str | Path) -> str:
    try:
        return str(Path(path).resolve())
    except OSError:
        return str(Path(path).absolute())
