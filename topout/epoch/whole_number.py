"""A count that a user gave, checked where it comes in rather than where it is first used."""

import operator
from typing import Any

from topout.schema.errors import TopoutError


def whole(name: str, value: Any, *, least: int | None = 1) -> int:
    """The number as Python's own, also one of numpy's; raises for what is none, or below `least`."""
    try:
        number = operator.index(value)
    except TypeError as error:
        raise TopoutError(
            f"{name}={value!r} is no whole number.",
            why=f"It is of type {type(value).__name__}.",
            do=f"for example {name}={least or 0}",
        ) from error
    if least is not None and number < least:
        raise TopoutError(f"{name}={number} is too small.", why=f"It is {least} or more.", do=f"{name}={least} or more")
    return number
