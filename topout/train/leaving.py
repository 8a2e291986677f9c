"""Leaves the process group before Python ends, and waits for its threads, which could end the process with an abort.

Not for `topout run`'s own ranks alone: they leave after the script as well; leaving twice does no harm.
"""

import atexit
import os
import sys
from collections.abc import Callable

import torch.distributed as dist

from topout.host.settling import settle
from topout.record import before_leaving

_finishing: list[Callable[[], None]] = []


def leave_at_exit() -> None:
    """Once the script has ended well; a rank that failed goes alone, for the others may be gone already."""
    atexit.unregister(_leave)
    atexit.register(_leave)


def finish_at_exit(call: Callable[[], None], *, anew: bool = True) -> None:
    """Before the group is left, whoever started this rank; a second time is to find nothing to do.

    `anew`: before what has been registered since. Not in the place of one that stands where Python is already leaving:
    what is registered then is not called any more.
    """
    if call in _finishing and not anew:
        return
    forget(call)
    _finishing.append(call)
    atexit.register(call)
    before_leaving.register(call)


def forget(call: Callable[[], None]) -> None:
    if call in _finishing:
        _finishing.remove(call)
    atexit.unregister(call)
    before_leaving.unregister(call)


def has_failed() -> bool:
    """Whether an exception ended the script."""
    return getattr(sys, "last_exc", None) is not None or getattr(sys, "last_value", None) is not None


def _leave() -> None:
    if not has_failed() and dist.is_initialized():
        dist.destroy_process_group()
    settle()


def _forget_all() -> None:
    # a child that the script forks is no rank: the group and what is being written are its parent's
    atexit.unregister(_leave)
    while _finishing:
        forget(_finishing[-1])


os.register_at_fork(after_in_child=_forget_all)
