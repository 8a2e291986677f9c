"""A model as a sequence of parts, the places where a pipeline may cut it.

An nn.Sequential is one as it stands. Any other model says so by a method:

    def sequence(self):
        return [self.embed, *self.blocks, self.norm, self.head]

whose items, each applied to the result of the one before, are the model's forward: submodules, methods of the model,
or plain functions. A tuple is handed on as several arguments. Not for forwards with connections past a part: put both
ends into one.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from topout.schema.errors import TopoutError


@dataclass(frozen=True)
class Part:
    name: str
    kind: str
    """module, method or function."""
    owns: tuple[str, ...]
    """Names of the modules, parameters and buffers it uses; all within a module belong to it."""
    function: Callable[..., Any] | None = None

    def has(self, name: str) -> bool:
        return any(name == own or name.startswith(f"{own}.") for own in self.owns)

    def run(self, model: Any) -> Callable[..., Any]:
        """What computes it in `model`, or in a copy of the model."""
        if self.kind == "module":
            found: Callable[..., Any] = model.get_submodule(self.name)
            return found
        if self.kind == "method":
            return getattr(model, self.name)  # type: ignore[no-any-return]
        assert self.function is not None
        return self.function


def parts_of(model: Any) -> list[Part]:
    names = {id(module): name for name, module in model.named_modules()}
    sequence = getattr(model, "sequence", None)
    if callable(sequence):
        items = list(sequence())
    elif type(model) is nn.Sequential:
        items = list(model)
    else:
        raise TopoutError(
            f"{type(model).__name__} cannot be cut into stages.",
            why="pp > 1 needs to know its parts in the order in which they are applied, and forward can do anything.",
            do="give it a method `def sequence(self): return [self.embed, *self.blocks, self.head]` whose items, "
            "applied one after the other, are its forward; or make it an nn.Sequential",
        )
    parts = [_part(model, item, names) for item in _flat(items)]
    _check_owned(model, parts)
    return parts


def applied(parts: list[Callable[..., Any]], *inputs: Any) -> Any:
    result: Any = inputs
    for part in parts:
        result = part(*result) if isinstance(result, tuple) else part(result)
    return result


def _flat(items: list[Any]) -> Iterator[Any]:
    for item in items:
        # only torch's own: a subclass may do more than apply its children
        if type(item) in (nn.Sequential, nn.ModuleList):
            yield from _flat(list(item))
        else:
            yield item


def _part(model: Any, item: Any, names: dict[int, str]) -> Part:
    if isinstance(item, nn.Module):
        if id(item) not in names or item is model:
            raise _no_part(model, f"a {type(item).__name__} that is not one of the model's submodules")
        return Part(names[id(item)], "module", (names[id(item)],))
    if getattr(item, "__self__", None) is model:
        return Part(item.__name__, "method", tuple(_used(model, item.__name__, set())))
    if callable(item) and getattr(item, "__self__", None) is None:
        return Part(getattr(item, "__name__", "function"), "function", (), item)
    raise _no_part(model, f"{item!r}")


def _no_part(model: Any, what: str) -> TopoutError:
    return TopoutError(
        f"{type(model).__name__}.sequence() has {what}.",
        why="Its items are submodules of the model, methods of it, or plain functions.",
        do="build them in __init__, and name them in sequence()",
    )


def _used(model: Any, method: str, seen: set[str]) -> Iterator[str]:
    """What a method's code names of the model's, also by other methods of the class that it calls."""
    seen.add(method)
    code = getattr(getattr(type(model), method, None), "__code__", None)
    for name in code.co_names if code is not None else ():
        if name in seen:
            continue
        if name in model._modules or name in model._parameters or name in model._buffers:
            seen.add(name)
            yield name
        elif callable(getattr(type(model), name, None)) and not hasattr(nn.Module, name):
            yield from _used(model, name, seen)


def _check_owned(model: Any, parts: list[Part]) -> None:
    for name, _ in model.named_parameters():
        if not any(part.has(name) for part in parts):
            raise TopoutError(
                f"No part of {type(model).__name__} uses {name}.",
                why="A stage holds what its parts use; this parameter would be on none.",
                do="have sequence() name the module it belongs to, or remove it",
            )
