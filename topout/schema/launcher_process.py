"""The process that leads a run, as run.json names it, and whether it is still there.

From another machine or another container nothing can be told: there the number belongs to somebody else.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def describe_launcher() -> dict[str, Any]:
    """This process; None: the kernel does not show it."""
    pid = os.getpid()
    return {
        "pid": pid,
        "host": os.uname().nodename,
        "boot_id": _boot_id(),
        "pid_namespace": _pid_namespace(),
        "start_ticks": _state_and_start(pid)[1],
    }


def is_launcher_alive(launcher: object) -> bool | None:
    """None where it cannot be told from here."""
    if not isinstance(launcher, dict):
        return None
    pid, boot_id, namespace = (launcher.get(key) for key in ("pid", "boot_id", "pid_namespace"))
    if not isinstance(pid, int) or pid < 1 or boot_id is None or namespace is None:
        return None
    if boot_id != _boot_id() or namespace != _pid_namespace():
        return None
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        # another user's; it is there
        pass
    told = launcher.get("start_ticks")
    if told is None:
        # its number is taken, and nothing tells by whom
        return True
    state, start_ticks = _state_and_start(pid)
    # numbers are given away again, and a process that nobody waits for keeps its number after its end
    return state not in ("Z", "X") and start_ticks in (None, told)


def _boot_id() -> str | None:
    return _read("/proc/sys/kernel/random/boot_id").strip() or None


def _pid_namespace() -> str | None:
    try:
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115
    except OSError:
        return None


def _state_and_start(pid: int) -> tuple[str | None, int | None]:
    """The letter of its state, and when it was started, in ticks since boot."""
    # its name stands before these, in brackets, and may hold any character
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    try:
        return fields[0], int(fields[19])
    except (IndexError, ValueError):
        return None, None


def _read(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""
