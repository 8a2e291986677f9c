"""What the system grants on this host: memory, /dev/shm, ulimits, processor time, and settings that bite later.

Read, not tried out: a limit is a limit even when nothing reaches it today.
"""

import os
import resource
import socket
import time
from pathlib import Path

from topout.host.kernel_files import read_text
from topout.host.openmp_traps import TRAPS
from topout.host.topology import allowed_cores, cpu_limit, memory_bytes
from topout.preflight.facts import Limits

_PROC = Path("/proc")
_SYS = Path("/sys")
_LOOK_S = 0.5


def read_limits(load: float | None) -> Limits:
    """`load` was read before the doctor itself began to work."""
    memory = _memory_lines()
    shm_bytes, shm_free_bytes = _size_of("/dev/shm")
    files_soft, files_hard = (_or_none(value) for value in resource.getrlimit(resource.RLIMIT_NOFILE))
    cores = allowed_cores()
    return Limits(
        memory_bytes=memory_bytes(),
        machine_memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        available_bytes=memory.get("MemAvailable"),
        swap_bytes=memory.get("SwapTotal", 0),
        swap_used_bytes=memory.get("SwapTotal", 0) - memory.get("SwapFree", 0),
        shm_bytes=shm_bytes,
        shm_free_bytes=shm_free_bytes,
        open_files=files_soft,
        open_files_hard=files_hard,
        processes=_soft(resource.RLIMIT_NPROC),
        locked_bytes=_soft(resource.RLIMIT_MEMLOCK),
        stack_bytes=_soft(resource.RLIMIT_STACK),
        huge_pages=chosen(read_text(_SYS / "kernel/mm/transparent_hugepage/enabled")),
        governor=read_text(_SYS / "devices/system/cpu/cpu0/cpufreq/scaling_governor").strip() or None,
        cpu_limit=cpu_limit(),
        num_cores=len(cores),
        steal_share=_steal_share(),
        load_per_core=None if load is None else load / (os.cpu_count() or 1),
        traps={name: value for name in TRAPS if (value := os.environ.get(name))},
        name_address=_own_address(),
        infiniband=tuple(sorted(path.name for path in (_SYS / "class/infiniband").glob("*"))),
    )


def chosen(text: str) -> str | None:
    """`always [madvise] never` means madvise."""
    _, bracket, rest = text.partition("[")
    return rest.partition("]")[0] if bracket else None


def _memory_lines() -> dict[str, int]:
    found = {}
    for line in read_text(_PROC / "meminfo").splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            found[name] = int(words[0]) * 1024
    return found


def _size_of(path: str) -> tuple[int | None, int | None]:
    try:
        found = os.statvfs(path)
    except OSError:
        return None, None
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def _steal_share() -> float | None:
    """Over half a second of doing nothing: what is stolen now is stolen by neighbours, not because of us."""
    before = _cpu_ticks()
    time.sleep(_LOOK_S)
    after = _cpu_ticks()
    if before is None or after is None or sum(after) == sum(before):
        return None
    return (after[7] - before[7]) / (sum(after) - sum(before))


def _cpu_ticks() -> list[int] | None:
    first = read_text(_PROC / "stat").partition("\n")[0].split()
    # user nice system idle iowait irq softirq steal; guest time is already counted in user
    return [int(word) for word in first[1:9]] if len(first) >= 9 else None


def _own_address() -> str | None:
    """That of IPv4 where the name has both."""
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except OSError:
        return None
    return str(min(found, key=lambda entry: entry[0] != socket.AF_INET)[4][0])


def _soft(limit: int) -> int | None:
    return _or_none(resource.getrlimit(limit)[0])


def _or_none(value: int) -> int | None:
    return None if value == resource.RLIM_INFINITY else value
