"""What a script compiles to, as Python compiles a file it is given to run.

The built-in `compile` makes classes for all nodes of a syntax tree first, whether it is asked for one or not: 2 ms, a
tenth of what a trivial script takes to start. The C function behind it does not. Not for code that is run many times.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType
    from typing import Any

_FILE_INPUT = 257
"""As Python's own headers have it: a whole file, not one line of a console."""
_AS_THIS_PYTHON = -1
"""Optimised, or not."""


def script_code(source: bytes, path: str) -> CodeType:
    """Raises what `compile` raises."""
    made = None if b"\0" in source else _function()
    if made is None:
        return compile(source, path, "exec", dont_inherit=True)
    code: CodeType = made(source, path)
    return code


def _function() -> Callable[[bytes, str], Any] | None:
    """None where Python's C part has other names."""
    try:
        from _ctypes import FUNCFLAG_CDECL, FUNCFLAG_PYTHONAPI, CFuncPtr, _SimpleCData, dlopen, dlsym

        address = dlsym(dlopen(None, 0), "Py_CompileStringObject")  # type: ignore[arg-type]
    except (ImportError, OSError):
        return None

    class Object(_SimpleCData):  # type: ignore[type-arg]
        _type_ = "O"

    class Compile(CFuncPtr):
        # with the interpreter's lock, and raising what it raised
        _flags_ = FUNCFLAG_CDECL | FUNCFLAG_PYTHONAPI
        _restype_ = Object

    function: Any = Compile(address)
    return lambda source, path: function(source, Object(path), _FILE_INPUT, None, _AS_THIS_PYTHON)
