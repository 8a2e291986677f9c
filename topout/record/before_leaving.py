"""What a rank finishes before it leaves its group: a checkpoint on its way to the disk, gradients that still travel.

`atexit` is too late for it under `topout run`, where a rank leaves the group, and has seconds to end, once its script
has ended. Not for what may never end: after a script that ended by itself nothing limits it.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_calls: list[Callable[[], None]] = []


def register(call: Callable[[], None]) -> None:
    unregister(call)
    _calls.append(call)


def unregister(call: Callable[[], None]) -> None:
    if call in _calls:
        _calls.remove(call)


def finish() -> None:
    """The last one first, as `atexit` has it; what one of them raises is told, and the others go on."""
    while _calls:
        try:
            _calls.pop()()
        except Exception as error:
            sys.excepthook(type(error), error, error.__traceback__)
