"""The end of a laboratory: whatever runs in its namespaces is killed, also when the test process dies first.

A namespace lives as long as a process in it, so killing the processes removes the network, the mounts and the host
names with them. Run as a program (by nodes.Nodes), this is the guard of one laboratory: it waits until its input
closes or its owner is gone, and cleans up then. Not for processes of a test that stay on the machine's own network.

Nodes share cores, which machines do not; the kernel therefore does not divide cores by session while the guard lives:
each node's threads would wait for ticks of the scheduler (a step of eight nodes took 82 ms instead of 66).
"""

import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

MARK = "TOPOUT_LAB_OWNER"
"""Variable that every process of a laboratory inherits: the test process's number and start, and the folder."""
_AUTOGROUP = Path("/proc/sys/kernel/sched_autogroup_enabled")


def mark_of(folder: Path) -> str:
    return f"{os.getpid()}:{started(os.getpid())}:{folder}"


def started(pid: int) -> str | None:
    """When a process started, in the kernel's ticks; tells it from a later one of the same number. None: gone."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if words[0] in "ZX" else words[19]


def network_of(pid: int | str) -> str | None:
    """The network namespace of a process; None where there is none to read, as for one that has ended."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return None


def processes_in(networks: Iterable[str]) -> list[int]:
    wanted = set(networks) - {network_of("self")}  # never the machine's own network
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    return [pid for pid in pids if network_of(pid) in wanted and started(pid)]


def kill_all(networks: Iterable[str], *, spare: Iterable[int] = (), seconds: float = 20.0) -> list[int]:
    """Kills until nothing is left, since a dying process may still start another; returns what would not die."""
    networks, spare = set(networks), set(spare)
    end = time.monotonic() + seconds
    while (left := [pid for pid in processes_in(networks) if pid not in spare]) and time.monotonic() < end:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)
    return left


def sweep() -> None:
    """Removes what sessions left behind whose test process and guard were both killed."""
    networks: dict[str, set[str]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (mark := _mark_in(entry)) and not _is_alive(mark):
            networks.setdefault(mark, set()).add(network_of(entry) or "")
    for mark, found in networks.items():
        kill_all(found)
        shutil.rmtree(mark.split(":", 2)[2], ignore_errors=True)


def _mark_in(pid: str) -> str | None:
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    start = f"{MARK}=".encode()
    return next((word[len(start) :].decode() for word in variables if word.startswith(start)), None)


def _is_alive(mark: str) -> bool:
    pid, start, _ = mark.split(":", 2)
    return started(int(pid)) == start


def guard(owner: int, folder: Path) -> None:
    """Reads one network a line; at the end of input, or of the owner, kills all that runs there."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the owner's end decides, not a Ctrl-C meant for it
    setting = autogroup()
    set_autogroup(setting and "0")
    networks: set[str] = set()
    waiting = [sys.stdin.fileno(), os.pidfd_open(owner)]
    while sys.stdin.fileno() in select.select(waiting, [], [])[0]:
        said = os.read(sys.stdin.fileno(), 4096).decode()
        if not said:
            break
        networks.update(said.split())
    left = kill_all(networks)
    shutil.rmtree(folder, ignore_errors=True)
    set_autogroup(setting)
    if left:
        sys.exit(f"still running in {folder}: {left}")


def autogroup() -> str | None:
    """Whether the kernel divides cores by session; None where it cannot."""
    return _AUTOGROUP.read_text() if _AUTOGROUP.exists() else None


def set_autogroup(value: str | None) -> None:
    if value is not None:
        _AUTOGROUP.write_text(value)


if __name__ == "__main__":
    guard(int(sys.argv[1]), Path(sys.argv[2]))
