"""How much memory a rank of this host may still take: of what is free now, and never more than its job is granted."""

from __future__ import annotations

import os

from topout.host.kernel_files import field_of, read_text
from topout.host.topology import groups_above

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    Folder = str | Path

SAFE = 0.8
"""Of what is free now: allocators keep reserves, and loaders grow."""
_NAMES = (
    ("memory.max", "memory.current", ("active_file", "inactive_file")),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file")),
)
"""Of a control group, in the second and the first version: its limit, what it has taken, and what of that is cache."""


def room_of_rank(num_ranks: int) -> int:
    """What each of so many ranks of this host may use."""
    return int(SAFE * free_bytes() / num_ranks)


def free_bytes(sys_root: Folder = "/sys", proc_root: Folder = "/proc") -> int:
    """Of this host, and of every control group above this process."""
    available_kb = field_of(read_text(f"{proc_root}/meminfo"), "MemAvailable").removesuffix("kB").strip()
    free = int(available_kb) * 1024 if available_kb else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for folder in groups_above("memory", sys_root, proc_root):
        for limit_name, taken_name, cached_names in _NAMES:
            limit, taken = (read_text(f"{folder}/{name}").strip() for name in (limit_name, taken_name))
            if limit.isdigit():
                # a group that does not say what it has taken limits all the same
                is_told = taken.isdigit()
                free = min(free, int(limit) - (int(taken) - _cached(folder, cached_names) if is_told else 0))
    return max(free, 0)


def _cached(folder: str, names: Sequence[str]) -> int:
    """What the kernel gives back when it is asked for more."""
    found = dict(line.partition(" ")[::2] for line in read_text(f"{folder}/memory.stat").splitlines())
    return sum(int(found.get(name, 0)) for name in names)
