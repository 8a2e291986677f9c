"""What a process does right now, told from outside by the kernel: on a CPU, opening, reading, or waiting otherwise.

Not exact for one look; thousands of looks a run give shares. Needs /proc/<pid>/syscall, which the kernel shows to the
process's own user (and, under Yama, to its ancestors); without it only "running" could be told, so nothing is.
"""

import os
import platform
from pathlib import Path

STATES = ("running", "opening", "reading", "waiting")

# /usr/include/asm/unistd_64.h and asm-generic/unistd.h
_OPENING = {
    "x86_64": frozenset({2, 4, 6, 21, 78, 217, 257, 262, 269, 332, 437, 439}),
    # open stat lstat access getdents getdents64 openat newfstatat faccessat statx openat2 faccessat2
    "aarch64": frozenset({48, 56, 61, 79, 291, 437, 439}),
    # faccessat openat getdents64 newfstatat statx openat2 faccessat2
}
_READING = {
    "x86_64": frozenset({0, 17, 19, 295, 327}),  # read pread64 readv preadv preadv2
    "aarch64": frozenset({63, 65, 67, 69, 286}),  # read readv pread64 preadv preadv2
}


class StateProbe:
    """Looks at one process again and again; its files in /proc stay open, as opening costs more than reading."""

    def __init__(self, pid: int, machine: str = platform.machine()) -> None:
        self.pid = pid
        self._opening = _OPENING.get(machine, frozenset())
        self._reading = _READING.get(machine, frozenset())
        self._stat_fd = self._syscall_fd = -1
        if self._reading:
            self._stat_fd = _open(f"/proc/{pid}/stat")
            self._syscall_fd = _open(f"/proc/{pid}/syscall")

    def look(self) -> str | None:
        """One of `STATES`; None when the process is gone or may not be looked at."""
        try:
            state = os.pread(self._stat_fd, 512, 0).rpartition(b")")[2][1:2]
            if state in (b"Z", b"X", b""):
                return None
            # read even when running, to learn whether reading is permitted at all
            call = os.pread(self._syscall_fd, 128, 0)
        except OSError:
            return None
        if state == b"R" or call.startswith(b"running"):
            return "running"
        return self._classify(call.split(), state)

    def close(self) -> None:
        for fd in (self._stat_fd, self._syscall_fd):
            if fd >= 0:
                os.close(fd)
        self._stat_fd = self._syscall_fd = -1

    def _classify(self, call: list[bytes], state: bytes) -> str:
        number = int(call[0]) if call else -1
        if number in self._opening:
            return "opening"
        if number in self._reading and len(call) > 1:
            return "reading" if self._is_file(int(call[1], 16)) else "waiting"
        # an uninterruptible sleep outside a read is a page fault on a mapped file, or a file system's lock
        return "reading" if state == b"D" else "waiting"

    def _is_file(self, fd: int) -> bool:
        """A read from a pipe or a socket is a wait for somebody, not for storage."""
        try:
            target = str(Path(f"/proc/{self.pid}/fd/{fd}").readlink())
        except OSError:
            return False
        return target.startswith("/") and (not target.startswith("/dev/") or target.startswith("/dev/shm/"))


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
