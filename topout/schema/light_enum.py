"""`IntEnum` and `StrEnum` for what loads before a training script's first line: named values, without loading `enum`.

That module, with what it imports, takes 5 ms, half the time that Python itself takes to start. Members are ints or
texts with a name, equal to and written like plain ones; `Kind(3)`, iteration and `is` work as usual, `Kind["NAME"]`
does not, and msgspec does not write them. A type checker sees the standard classes.

Not for classes that nobody needs before the script begins, nor for flags that combine: `A | B` is a plain int.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from enum import IntEnum, StrEnum
    from typing import Any

__all__ = ["IntEnum", "StrEnum"]


class _Named(type):
    """Makes a member of each public name of a class."""

    __members__: dict[str, Any]
    _by_value: dict[Any, Any]

    def __new__(cls, name: str, bases: tuple[type, ...], content: dict[str, Any]) -> _Named:
        values = {key: value for key, value in content.items() if not key.startswith("_") and type(value) in (int, str)}
        made = super().__new__(cls, name, bases, {key: content[key] for key in content.keys() - values.keys()})
        made.__members__ = {}
        made._by_value = {}
        for key, value in values.items():
            kind: Any = made
            member: Any = kind.__new__(kind, value)
            member.name, member.value = key, value
            setattr(made, key, member)
            made.__members__[key] = made._by_value[value] = member
        return made

    def __call__(cls, value: Any) -> Any:
        try:
            return cls._by_value[value]
        except (KeyError, TypeError):
            raise ValueError(f"{value!r} is not a valid {cls.__name__}") from None

    def __iter__(cls) -> Iterator[Any]:
        return iter(cls.__members__.values())

    def __len__(cls) -> int:
        return len(cls.__members__)


if not TYPE_CHECKING:

    class IntEnum(int, metaclass=_Named):
        def __reduce__(self) -> tuple[Any, ...]:
            return type(self), (self.value,)

    class StrEnum(str, metaclass=_Named):
        def __reduce__(self) -> tuple[Any, ...]:
            return type(self), (self.value,)
