"""A second process of the probe, for what needs two on one host: a copy of this one, so that nothing is imported twice.

Not for anything after a GPU was used: CUDA does not survive a fork.
"""

import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_END_LIMIT_S = 2.0


@contextmanager
def forked(work: Callable[[], object]) -> Iterator[int]:
    """Runs `work` in a child while the block runs here; the child is gone afterwards, whatever happened."""
    with warnings.catch_warnings():
        # Python warns of forks beside threads; ours waits on an event and holds no lock
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    try:
        yield pid
    finally:
        _end(pid)


def _end(pid: int) -> None:
    end_s = time.monotonic() + _END_LIMIT_S
    while time.monotonic() < end_s:
        if os.waitpid(pid, os.WNOHANG)[0] == pid:
            return
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
