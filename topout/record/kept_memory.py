"""Memory that was freed stays with the process, where the next step finds it.

glibc gives every block of 32 MiB and more back to the kernel when it is freed, smaller ones often, and the unused end
of its heap. Training frees its activations and gradients in each step and asks for as much in the next, and the kernel
clears every page anew: a ResNet-50 on 48 images and two cores took 4.4 million page faults and 19.0 s a step, and
12.6 s without them (`benchmarks/kept_memory.py`).

The process then holds its largest step's memory until it ends, and somewhat more, for free space lies in pieces.
Numbers do not change. Not where another allocator is loaded, or the user has set glibc's own.
"""

from __future__ import annotations

import os

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
"""Names of malloc.h: how much unused heap goes back, and how many blocks may be mapped, each by itself."""
_NEVER, _NONE = -1, 0
_OWN_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_")
_OTHER_ALLOCATORS = ("jemalloc", "tcmalloc", "mimalloc")


def keep() -> bool:
    """From now on and in children that are forked; whether it took effect. Never raises."""
    if _is_chosen_by_user():
        return False
    try:
        import ctypes

        libc = ctypes.CDLL(None)
        # no other C library has it
        libc.gnu_get_libc_version  # noqa: B018
        return bool(libc.mallopt(_MMAP_MAX, _NONE) and libc.mallopt(_TRIM_THRESHOLD, _NEVER))
    except (ImportError, OSError, AttributeError):
        return False


def _is_chosen_by_user() -> bool:
    has_other = any(name in os.environ.get("LD_PRELOAD", "") for name in _OTHER_ALLOCATORS)
    has_tunables = "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", "")
    return has_other or has_tunables or any(name in os.environ for name in _OWN_SETTINGS)
