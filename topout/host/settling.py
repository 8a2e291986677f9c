"""Waits at the end of a process until the threads that carry torch's collectives have let go of Python's objects.

After a collective such a thread drops the tensors it was given, and for that asks for the interpreter's lock. When the
interpreter is shutting down by then, Python before 3.14 ends the thread where it stands, and C++ ends the process:
"terminate called without an active exception", exit code 134, after a training that went well. On a busy node that is
one job in three. Not for waiting on collectives: a thread whose peer has gone sleeps for ever, and counts as settled.
"""

import os
import time
from collections.abc import Callable

from topout.host.kernel_files import names_in, read_text

THREADS = "pt_gloo_runloop"
"""What torch names them; where there are none, nothing is waited for."""
_PAUSE_S = 0.001
_LIMIT_S = 1.0


def settle(progress: Callable[[], dict[str, str]] | None = None) -> bool:
    """Whether the threads came to rest. A few milliseconds; a second at most, on a node that has no time for them."""
    read = progress or _progress
    deadline = time.monotonic() + _LIMIT_S
    before = read()
    while before and time.monotonic() < deadline:
        # sleeping hands over the interpreter: a thread that wants it takes it now, and its counts of switches change
        time.sleep(_PAUSE_S)
        now = read()
        if now == before and all("(sleeping)" in state for state in now.values()):
            return True
        before = now
    return not before


def _progress() -> dict[str, str]:
    """State and counts of switches of each thread, by its number."""
    folder = f"/proc/{os.getpid()}/task"
    return {
        number: "".join(line for line in read_text(f"{folder}/{number}/status").splitlines() if _tells(line))
        for number in names_in(folder)
        if read_text(f"{folder}/{number}/comm").strip() == THREADS
    }


def _tells(line: str) -> bool:
    return line.startswith("State:") or "ctxt_switches" in line
