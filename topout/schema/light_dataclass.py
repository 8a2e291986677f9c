"""`@dataclass` for what loads before a training script's first line: the same classes, without compiling any code.

The standard one loads `inspect` and compiles half a dozen methods for each class; in a launcher that alone took longer
than Python's own start. A type checker sees the standard decorator, and so does whoever looks for
`__dataclass_fields__` (`dataclasses.asdict`, msgspec): the first look makes them.

Not for classes of which thousands are made, since each is built from a dict of its values, nor for derived ones.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass, field, replace
    from typing import Any

__all__ = ["dataclass", "field", "names_of", "replace"]


class _Made:
    """Stands where a value is made for each object."""

    def __init__(self, default_factory: Callable[[], Any], repr: bool) -> None:
        self.default_factory = default_factory
        self.repr = repr


class _StandardFields:
    """Turns into what `dataclasses` keeps of a class, at the first look."""

    def __get__(self, instance: object, owner: type) -> dict[str, Any]:
        import dataclasses

        def standard(name: str) -> Any:
            made = owner.__made__.get(name)  # type: ignore[attr-defined]
            if made is not None:
                return dataclasses.field(default_factory=made.default_factory, repr=made.repr)
            return owner.__defaults__.get(name, dataclasses.MISSING)  # type: ignore[attr-defined]

        columns: list[Any] = []
        for name, kind in owner.__annotations__.items():
            value = standard(name)
            columns.append((name, kind) if value is dataclasses.MISSING else (name, kind, value))
        options: dict[str, Any] = owner.__options__  # type: ignore[attr-defined]
        twin: Any = dataclasses.make_dataclass(owner.__name__, columns, **options)
        owner.__dataclass_params__ = twin.__dataclass_params__  # type: ignore[attr-defined]
        owner.__dataclass_fields__ = twin.__dataclass_fields__  # type: ignore[attr-defined]
        found: dict[str, Any] = twin.__dataclass_fields__
        return found


def names_of(item: object) -> tuple[str, ...]:
    """The names of the fields of a class or of one of its objects, in order; of a standard dataclass, too."""
    found: tuple[str, ...] | None = getattr(item, "__names__", None)
    return tuple(item.__dataclass_fields__) if found is None else found  # type: ignore[attr-defined]


def _dataclass(cls: Any = None, /, *, frozen: bool = False, kw_only: bool = False) -> Any:
    if cls is None:
        return lambda cls: _dataclass(cls, frozen=frozen, kw_only=kw_only)
    assert cls.__mro__ == (cls, object), "only `dataclasses` can derive"
    names = tuple(cls.__annotations__)
    found = {name: cls.__dict__[name] for name in names if name in cls.__dict__}
    made = {name: value for name, value in found.items() if isinstance(value, _Made)}
    for name in made:
        delattr(cls, name)
    cls.__names__ = names
    cls.__made__ = made
    cls.__defaults__ = {name: value for name, value in found.items() if name not in made}
    cls.__options__ = {"frozen": frozen, "kw_only": kw_only}
    cls.__dataclass_fields__ = _StandardFields()
    cls.__init__ = _initialiser(names, cls.__defaults__, made, is_by_name=kw_only)
    cls.__repr__ = _representation
    cls.__eq__ = _equals
    cls.__hash__ = _hash if frozen else None
    if not kw_only:
        cls.__match_args__ = names  # type: ignore[misc]
    if frozen:
        cls.__setattr__ = cls.__delattr__ = _refuse
    return cls


def _initialiser(
    names: tuple[str, ...], defaults: dict[str, Any], made: dict[str, _Made], *, is_by_name: bool
) -> Callable[..., None]:
    known = frozenset(names)
    given_in_order = () if is_by_name else names

    def initialise(self: Any, /, *in_order: Any, **values: Any) -> None:
        if in_order:
            if len(in_order) > len(given_in_order) or values.keys() & given_in_order[: len(in_order)]:
                raise TypeError(f"{type(self).__name__}() got too many values in order")
            values.update(zip(given_in_order, in_order, strict=False))
        content = self.__dict__
        content.update(defaults)
        for name, value in made.items():
            if name not in values:
                content[name] = value.default_factory()
        content.update(values)
        if content.keys() != known:
            for name in content.keys() - known:
                raise TypeError(f"{type(self).__name__}() got an unexpected keyword argument {name!r}")
            missing = ", ".join(name for name in names if name not in content)
            raise TypeError(f"{type(self).__name__}() misses {missing}")

    return initialise


def _values(self: Any) -> tuple[Any, ...]:
    return tuple([getattr(self, name) for name in self.__names__])


def _representation(self: Any) -> str:
    hidden = {name for name, value in self.__made__.items() if not value.repr}
    shown = (f"{name}={getattr(self, name)!r}" for name in self.__names__ if name not in hidden)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _equals(self: Any, other: object) -> Any:
    return _values(self) == _values(other) if type(other) is type(self) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_values(self))


def _refuse(self: Any, name: str, *value: Any) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot {'assign to' if value else 'delete'} field {name!r}")


def _field(*, default_factory: Callable[[], Any], repr: bool = True) -> Any:
    return _Made(default_factory, repr)


def _replace(item: Any, /, **changes: Any) -> Any:
    return type(item)(**{**{name: getattr(item, name) for name in names_of(item)}, **changes})


if not TYPE_CHECKING:
    dataclass, field, replace = _dataclass, _field, _replace
