"""Memory that was freed stays with the process, where the next step finds it.

glibc gives every block of 32 MiB and more back to the kernel when it is freed, smaller ones often, and the unused end
of its heap. Training frees its activations and gradients in each step and asks for as much in the next, and the kernel
clears every page anew: a ResNet-50 on 48 images and 16 cores took 3.4 million page faults and 2.6 s a step, and
1.8 s without them (`benchmarks/kept_memory.py`).

The process then holds its largest step's memory until it ends, and more, for free space lies in pieces: up to twice
as much where a step is made of few large blocks, since glibc asks for more than a block to align it, and one that was
freed does not always serve for the next of its size. Numbers do not change.

Not for what a helper thread computes, whose heaps hold no block above 64 MiB and go back when they are empty. Not where
another allocator is loaded, or the user has set what glibc gives back.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
"""Names of malloc.h: how much unused heap goes back, and how many blocks may be mapped, each by itself."""
_NEVER, _NONE = -1, 0
_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_")
_TUNABLES = ("glibc.malloc.trim_threshold=", "glibc.malloc.mmap_threshold=", "glibc.malloc.mmap_max=",
             "glibc.malloc.top_pad=")  # fmt: skip

_REPLACED_TOGETHER = ("malloc", "calloc", "realloc")
"""By other allocators. Programs built without -fPIE, as Debian's Python is, have addresses of their own for some."""


def keep() -> str | None:
    """From now on, and in children that are forked. None, or the reason why not; never raises."""
    chosen = _chosen_by_user()
    if chosen is not None:
        return f"{chosen} is set"
    try:
        return _tell_glibc()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _tell_glibc() -> str | None:
    import ctypes

    try:
        libc = ctypes.CDLL("libc.so.6", mode=os.RTLD_NOLOAD)
        # stand-ins for it on musl have no such function
        libc.gnu_get_libc_version  # noqa: B018
    except (OSError, AttributeError):
        return "the C library is not glibc"
    # asked for by address, since other allocators have a mallopt of their own, which says yes and does nothing
    here = ctypes.CDLL(None)
    if all(_address(getattr(here, name)) != _address(getattr(libc, name)) for name in _REPLACED_TOGETHER):
        return "another allocator is in use"
    if not (libc.mallopt(_MMAP_MAX, _NONE) and libc.mallopt(_TRIM_THRESHOLD, _NEVER)):
        return "glibc refused it"
    return None


def _address(function: Any) -> int | None:
    import ctypes

    return ctypes.cast(function, ctypes.c_void_p).value


def _chosen_by_user() -> str | None:
    """The first setting of the user's own that says what glibc gives back; any of them turns its adapting off."""
    tunables = os.environ.get("GLIBC_TUNABLES", "").split(":")
    found = [f"GLIBC_TUNABLES={text}" for text in tunables if text.startswith(_TUNABLES)]
    return next((name for name in _VARIABLES if name in os.environ), found[0] if found else None)
