"""How often the kernel has killed for lack of memory, so that a SIGKILL can be told apart from somebody's `kill -9`.

Counts of the control group, else of the whole machine; compare one reading before the job with one after.
"""

from __future__ import annotations

from topout.host.kernel_files import read_text
from topout.host.topology import cgroup_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from os import PathLike


def count_oom_kills() -> int | None:
    """None when the kernel does not tell."""
    group = cgroup_folder("memory")
    for path in (f"{group}/memory.events", f"{group}/memory.oom_control", "/proc/vmstat"):
        count = read_oom_kill(path)
        if count is not None:
            return count
    return None


def read_oom_kill(path: str | PathLike[str]) -> int | None:
    """The line `oom_kill N` of one of the kernel's files."""
    lines = read_text(path).splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)


def kills_since(before: int | None) -> int | None:
    after = count_oom_kills()
    return None if before is None or after is None else max(0, after - before)
