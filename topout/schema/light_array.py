"""`array` for what loads before a training script's first line, without the package `collections`.

The C module says at its first import that it is a kind of `collections.abc.MutableSequence`. Python has loaded those
classes at its own start, under another name; under that of `collections.abc` the package around it is loaded as well,
which takes 2 ms. For that one import the names mean what is there already; whoever imports them later finds Python's.
"""

import _collections_abc
import sys

_STAND_INS = () if "collections" in sys.modules else ("collections", "collections.abc")
for _name in _STAND_INS:
    sys.modules[_name] = _collections_abc
try:
    from array import array
finally:
    for _name in _STAND_INS:
        del sys.modules[_name]

__all__ = ["array"]
