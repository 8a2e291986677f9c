"""`functools.cache` for what loads before a training script's first line.

`functools` brings `collections` along, and the two take 3 ms. Not for methods, nor where answers are to be forgotten.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, ParamSpec, TypeVar

    Asked = ParamSpec("Asked")
    Answer = TypeVar("Answer")


def remembered(find: Callable[Asked, Answer]) -> Callable[Asked, Answer]:
    """Each question, of values in order, is worked out once."""
    known: dict[tuple[Any, ...], Any] = {}

    def look_up(*asked: Any) -> Any:
        if asked not in known:
            known[asked] = find(*asked)  # type: ignore[call-arg]
        return known[asked]

    return look_up  # type: ignore[return-value]
