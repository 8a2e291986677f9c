"""Leaves the process group before Python ends, and waits for its threads, which could end the process with an abort.

Not for `topout run`'s own ranks alone: they leave after the script as well; leaving twice does no harm.
"""

import atexit
import sys
from collections.abc import Callable

import torch.distributed as dist

from topout.host.settling import settle
from topout.record import before_leaving


def leave_at_exit() -> None:
    """Once the script has ended well; a rank that failed goes alone, for the others may be gone already."""
    atexit.unregister(_leave)
    atexit.register(_leave)


def finish_at_exit(call: Callable[[], None]) -> None:
    """Before the group is left, whoever started this rank; a second time is to find nothing to do."""
    forget(call)
    atexit.register(call)
    before_leaving.register(call)


def forget(call: Callable[[], None]) -> None:
    atexit.unregister(call)
    before_leaving.unregister(call)


def has_failed() -> bool:
    """Whether an exception ended the script."""
    return getattr(sys, "last_exc", None) is not None or getattr(sys, "last_value", None) is not None


def _leave() -> None:
    if not has_failed() and dist.is_initialized():
        dist.destroy_process_group()
    settle()
