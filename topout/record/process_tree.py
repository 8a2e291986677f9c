"""CPU time, memory and input/output of a rank and of everything it started, read from /proc without touching it.

The kernel adds what a child used to its parent once it is reaped, so sums over the living plus the parent's own account
for workers that have come and gone. Linux alone.
"""

from __future__ import annotations

import os

from topout.schema.light_dataclass import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
WORTH_WAITING_BYTES = 64 << 10
"""Written in a few seconds by who should end; a thread that logs writes less."""
WRITING_AFTER_FAILURE_S = 30.0
"""However much a rank that failed still writes: the others stand in their collective meanwhile."""
_NOT_WORKERS = (b"resource_tracker", b"semaphore_tracker", b"compile_worker", b"forkserver import main")

IO_COUNTERS = {
    b"rchar": "read_bytes",
    b"wchar": "write_bytes",
    b"syscr": "read_calls",
    b"syscw": "write_calls",
    b"read_bytes": "storage_read_bytes",
    b"write_bytes": "storage_write_bytes",
}
"""The kernel's names in /proc/<pid>/io, and ours."""


@dataclass(frozen=True)
class CpuTime:
    """Of a process itself, and of the children it has reaped."""

    own_ns: int
    reaped_ns: int
    own_system_ns: int
    """Inside the kernel: copying what is read, opening files, faulting pages in."""
    reaped_system_ns: int
    own_page_faults: int
    """Pages that the kernel had to make or to map; not those that it had to read."""


def read_cpu(pid: int) -> CpuTime | None:
    data = _read(f"/proc/{pid}/stat")
    values = data.rpartition(b")")[2].split() if data else []
    if len(values) < 15:
        return None
    user, system, children_user, children_system = (int(value) for value in values[11:15])
    return CpuTime(
        own_ns=(user + system) * _TICK_NS,
        reaped_ns=(children_user + children_system) * _TICK_NS,
        own_system_ns=system * _TICK_NS,
        reaped_system_ns=children_system * _TICK_NS,
        own_page_faults=int(values[7]),
    )


def read_thread(pid: int, thread: int) -> tuple[str, int]:
    """The kernel's letter for what a thread does, and its CPU time in ns; that of one that is gone is 0."""
    data = _read(f"/proc/{pid}/task/{thread}/stat")
    values = data.rpartition(b")")[2].split() if data else []
    return (values[0].decode(), (int(values[11]) + int(values[12])) * _TICK_NS) if len(values) > 12 else ("", 0)


def threads_of(pid: int) -> list[int]:
    return [int(name) for name in _names(f"/proc/{pid}/task")]


def read_resident_bytes(pid: int) -> int | None:
    data = _read(f"/proc/{pid}/statm")
    return int(data.split()[1]) * _PAGE_BYTES if data else None


def read_io(pid: int) -> dict[str, int]:
    """Empty when it may not be read."""
    found = {}
    for line in (_read(f"/proc/{pid}/io") or b"").splitlines():
        name, _, value = line.partition(b":")
        if name in IO_COUNTERS:
            found[IO_COUNTERS[name]] = int(value)
    return found


class Writing:
    """What a process and those below it in its group write, look by look.

    Through system calls, and what they made the kernel owe to storage: the latter grows in the middle of a long call,
    too, and by what is written into mapped files. The calls of a child that can write to nothing but pipes of the
    process itself, or files of its that do not grow, do not count: it feeds it. `below` says which processes count
    instead; the process itself then does not.
    """

    def __init__(self, pid: int, below: Callable[[int], list[int]] | None = None) -> None:
        self._pid = pid
        self._counted = below or _with_group
        self._last: dict[int, tuple[dict[str, int], bool]] = {}
        self._positions: dict[tuple[int, str], int] = {}
        self._num_bytes = 0

    def look(self) -> int:
        """All bytes so far; only how they grow means something."""
        shared = {way for _, way in _ways_out(self._pid)}
        before, self._last = self._last, {}
        for pid in self._counted(self._pid):
            counts, had_own = before.get(pid, ({}, False))
            has_own = pid == self._pid or any(self._leads_out(pid, fd, way, shared) for fd, way in _ways_out(pid))
            found = read_io(pid)
            self._last[pid] = (found, has_own)
            # who writes one file after the other has none open now and then
            names = ("storage_write_bytes", "write_bytes") if has_own or had_own else ("storage_write_bytes",)
            self._num_bytes += sum(max(0, found.get(name, 0) - counts.get(name, 0)) for name in names)
        return self._num_bytes

    def _leads_out(self, pid: int, fd: str, way: str, shared: set[str]) -> bool:
        """Whether a child can write there for others than the process; a file that it inherited, where it gets on."""
        flags, position = _opened(pid, fd)
        if flags & os.O_ACCMODE == os.O_RDONLY:
            return False
        if way not in shared:
            return True
        before, self._positions[pid, fd] = self._positions.get((pid, fd), position), position
        return before != position


def descendants(pid: int) -> list[int]:
    """All processes below one, nearest first. A kernel that does not list children gives none."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        children = _children(waiting.pop(0))
        found += children
        waiting += children
    return found


def are_workers(rank_pid: int, pids: list[int]) -> list[int]:
    """Those that may feed the rank: the same interpreter, and none of Python's own servants."""
    interpreter = _executable(rank_pid)
    return [pid for pid in pids if interpreter is not None and _executable(pid) == interpreter and not _is_servant(pid)]


def group_below(pid: int) -> list[int]:
    """Processes below one that are ended with its group; who has a group of its own outlives it."""
    group = _state_and_group(pid)[1]
    return [each for each in descendants(pid) if _state_and_group(each)[1] == group]


def company(pid: int) -> list[int]:
    """Those of its group that still run; Python's own servants do not count."""
    return [each for each in group_below(pid) if _state_and_group(each)[0] not in ("", "Z") and not _is_servant(each)]


def _with_group(pid: int) -> list[int]:
    return [pid, *group_below(pid)]


def _state_and_group(pid: int) -> tuple[str, int]:
    """The kernel's letter, and the process group; of one that is gone, none that anybody has."""
    values = (_read(f"/proc/{pid}/stat") or b"").rpartition(b")")[2].split()
    return (values[0].decode(), int(values[2])) if len(values) > 2 else ("", -1)


def _is_servant(pid: int) -> bool:
    return any(name in (_read(f"/proc/{pid}/cmdline") or b"") for name in _NOT_WORKERS)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for thread in threads_of(pid):
        found += map(int, (_read(f"/proc/{pid}/task/{thread}/children") or b"").split())
    return found


def _ways_out(pid: int) -> list[tuple[str, str]]:
    """Descriptors of files, pipes and sockets, and what they lead to; not devices, nor files that are deleted."""
    found = []
    for fd in _names(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{fd}")  # noqa: PTH115
        except OSError:
            continue
        if target.startswith(("pipe:", "socket:")):
            found.append((fd, target))
        elif target.startswith("/") and not target.startswith("/dev/") and not target.endswith(" (deleted)"):
            # one that a fork inherited has its number still; as a program's standard output it has another
            found.append((fd, f"{fd} {target}"))
    return found


def _opened(pid: int, fd: str) -> tuple[int, int]:
    """How, and where in the file it is; as if for reading where the kernel does not say."""
    data = _read(f"/proc/{pid}/fdinfo/{fd}") or b""
    flags, position = data.partition(b"flags:")[2].split(), data.partition(b"pos:")[2].split()
    return (int(flags[0], 8), int(position[0])) if flags and position else (os.O_RDONLY, 0)


def _executable(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/exe")  # noqa: PTH115
    except OSError:
        return None


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 (ranks do without pathlib)
    except OSError:
        return []


def _read(path: str) -> bytes | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(fd, 1 << 16)
    except OSError:
        return None
    finally:
        os.close(fd)
