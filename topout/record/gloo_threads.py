"""Lets Gloo's sending threads finish before its receiving thread runs: where cores are few, all-reduces wait no more.

Each Gloo group has a thread that waits for sockets. When it wakes while a sender holds the connection's lock, it does
not wait for the lock: it turns round and asks again, and on a core that both share the sender cannot go on until the
scheduler's next tick. On one core a rank an all-reduce of 4 KiB then takes 1.9 ms instead of 0.3, and one of 32 MiB
over loopback 22 ms instead of 17 (`benchmarks/gloo_threads.py`).

The thread is therefore put into SCHED_BATCH, the class of threads that interrupt nobody when they wake: the same share
of the core, no other order of additions, no privilege needed. TOPOUT_GLOO_THREADS=normal leaves it as torch made it.
"""

from __future__ import annotations

import os
import time
from _thread import get_native_id

from topout.schema.ignoring import ignoring

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import ModuleType
    from typing import Any

MODULE = "torch.distributed.distributed_c10d"
VARIABLE = "TOPOUT_GLOO_THREADS"
_RECEIVER, _SENDER = "gloo_tcp_loop", "pt_gloo_runloop"
"""The receiver has its name since torch 2.13; before, that of the thread which made the group."""
_NAMING_LIMIT_S = 0.05
_TORCHS_CHOICE = "undefined"
"""The backend of a group whose maker named none: Gloo is among what torch then takes."""
_TASKS = "/proc/self/task"
_MAKES_GROUPS = "_new_process_group_helper"
"""What `init_process_group` and `new_group` both call; a torch without it keeps its groups as they are."""


def install_later() -> None:
    """For a rank without a recorder; with one, the tap of the collectives calls `install`."""
    from topout.record.imports import call_after_import

    call_after_import({MODULE: [install]})


def install(module: ModuleType) -> None:
    """Every group that is made from now on has a receiving thread that gives way. Twice does no harm."""
    original = getattr(module, _MAKES_GROUPS, None)
    if original is None or hasattr(original, "gives_way"):
        return

    # torch has loaded it, and `threading`
    from functools import wraps

    @wraps(original)
    def make_group(*args: Any, **kwargs: Any) -> Any:
        before = _threads()
        made = original(*args, **kwargs)
        backend = str(kwargs.get("backend", args[3] if len(args) > 3 else None))
        if "gloo" in backend or backend == _TORCHS_CHOICE:
            _into_batch(_receivers_since(before))
        return made

    make_group.gives_way = True  # type: ignore[attr-defined]
    setattr(module, _MAKES_GROUPS, make_group)


def give_way() -> int:
    """How many receiving threads of groups that are there already were told so now: those that have their name."""
    return _into_batch(thread for thread, name in _threads().items() if name == _RECEIVER)


def _receivers_since(before: Mapping[int, str]) -> list[int]:
    """Torch's threads since then that call themselves so, or the only one without a name once senders have theirs."""
    own_name = before.get(get_native_id())
    import threading

    until_s = time.monotonic() + _NAMING_LIMIT_S
    while True:
        of_python = {thread.native_id for thread in threading.enumerate()}
        new = {thread: name for thread, name in _threads().items() if thread not in before and thread not in of_python}
        named = [thread for thread, name in new.items() if name == _RECEIVER]
        unnamed = [thread for thread, name in new.items() if name == own_name]
        # a rank that is no member of the new group has no new threads
        if named or not new:
            return named
        if _SENDER in new.values() and len(unnamed) <= 1:
            return unnamed
        if time.monotonic() > until_s:
            return []
        time.sleep(0.001)


def _threads() -> dict[int, str]:
    """Names of this process's threads by their numbers; empty where /proc is not to be had."""
    found = {}
    with ignoring(OSError):
        for task in os.listdir(_TASKS):  # noqa: PTH208 (pathlib is not loaded for it)
            # it may end meanwhile
            with ignoring(OSError), open(f"{_TASKS}/{task}/comm") as file:
                found[int(task)] = file.read().rstrip("\n")
    return found


def _into_batch(threads: Iterable[int]) -> int:
    """How many were not in it before. Never raises: a thread may have ended, and a system may forbid it."""
    if not hasattr(os, "SCHED_BATCH") or os.environ.get(VARIABLE) == "normal":
        return 0
    count = 0
    for thread in threads:
        with ignoring(OSError):
            if os.sched_getscheduler(thread) == os.SCHED_OTHER:
                os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))
                count += 1
    return count
