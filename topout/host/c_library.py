"""Calls of the C library with plain numbers and bytes, without loading `ctypes`.

That module makes a class for each type of C, which takes 3 ms; its own C code is all that is needed here. A number
travels as a C int, bytes as a pointer that the call must only read. Not for anything that returns more than an int.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def c_function(name: str) -> Callable[..., int] | None:
    """The function of that name; None where there is none. Nothing is loaded when it is called."""
    if sys.platform != "linux":
        return None
    try:
        from _ctypes import call_cdeclfunction, dlopen, dlsym
    except ImportError:
        return _by_ctypes(name)
    try:
        # of this program and all it has loaded
        address = dlsym(dlopen(None, 0), name)  # type: ignore[arg-type]
    except OSError:
        return None
    return lambda *arguments: int(call_cdeclfunction(address, arguments))


def _by_ctypes(name: str) -> Callable[..., int] | None:
    """For a Python whose C part has other names."""
    import ctypes

    return getattr(ctypes.CDLL(None), name, None)
