"""What `wrap` was given for one model, for as long as the script has it: one that nobody trains any more is let go.

The DDP module is held by nobody but the script. Its inner module stays as long as an optimizer that trains it does, so
that a script which keeps only parts of the model has all of it in its checkpoints. The loader given last stays with
them: whoever draws from its iterator may have dropped the loader itself.
"""

import sys
import weakref
from collections.abc import Callable, Collection
from typing import Any

from topout.train.parallel import unwrapped

Reference = Callable[[], Any]


class Wrapped:
    """`number` counts from 1, in the order of wrapping; names in a checkpoint have it from 2 on.

    A model may have several optimizers and loaders, each with the number of its call. The first that the script still
    has goes by the model's number: whatever takes the place of another has its name.
    """

    def __init__(self, number: int, *, model: Any, optimizer: Any, loader: Any, compression: Any) -> None:
        self.number = number
        self._inner = _weak(unwrapped(model))
        self._model = self._compression = _weak(None)
        self._learning: list[str] = []
        self._trained: Any = None
        self._last_loader: Any = None
        self._optimizers: dict[int, Reference] = {}
        self._loaders: dict[int, Reference] = {}
        self._trained_by: dict[int, set[str]] = {}
        self.add(number, model=model, optimizer=optimizer, loader=loader, compression=compression)

    @property
    def model(self) -> Any:
        """None when it is gone; the inner module where only that is left."""
        wrapped = self._model()
        return self._inner() if wrapped is None else wrapped

    @property
    def optimizers(self) -> list[Any]:
        return list(_living(self._optimizers).values())

    @property
    def loaders(self) -> list[Any]:
        return list(_living(self._loaders).values())

    @property
    def is_alive(self) -> bool:
        return self.model is not None

    def is_of(self, model: Any) -> bool:
        """Whether it is this one's model that is wrapped again, as after layers were unfrozen."""
        return self._inner() is unwrapped(model)

    def add(self, number: int, *, model: Any, optimizer: Any, loader: Any, compression: Any) -> bool:
        """What call `number` was given, beside what others were or in its place; whether it takes that number.

        All ranks decide alike, so nothing here depends on what is gone: garbage is collected when it suits each.
        """
        learning = [name for name, parameter in unwrapped(model).named_parameters() if parameter.requires_grad]
        is_other = model is not self._model()
        # a world of one has no DDP module that could be another
        is_anew = learning != self._learning and (is_other or model is unwrapped(model))
        self._learning = learning
        if is_other:
            self._model, self._compression = _weak(model), _weak(compression)
        taken = set()
        if optimizer is not None:
            self._trained = unwrapped(model)
            taken.add(self._add_optimizer(number, optimizer, is_anew=is_anew))
        if loader is not None:
            taken.add(self._add_loader(number, loader))
        return number in taken

    def parts(self) -> dict[str, Any]:
        """By the names that they have in a checkpoint."""
        found = [("model", self.number, self.model)]
        for kind, held in self._kinds():
            living = _living(held)
            numbers = [self.number, *list(living)[1:]]
            found += [(kind, number, part) for number, part in zip(numbers, living.values(), strict=False)]
        found.append(("compression", self.number, self._compression()))
        return {f"{kind}-{number}" if number > 1 else kind: part for kind, number, part in found if part is not None}

    def living(self) -> list[str]:
        """What the script still has, in words that mean the same on all ranks; the model is the first."""
        kept = [f"{kind} {number}" for kind, held in self._kinds() for number in _living(held)]
        return [f"model {self.number}", *kept]

    def keep(self, living: Collection[str]) -> None:
        """Only these: the others are gone on some rank."""
        for kind, held in self._kinds():
            for number in [number for number in held if f"{kind} {number}" not in living]:
                del held[number]

    def _kinds(self) -> list[tuple[str, dict[int, Reference]]]:
        return [("optimizer", self._optimizers), ("loader", self._loaders)]

    def _add_optimizer(self, number: int, optimizer: Any, *, is_anew: bool) -> int:
        """One that trains what another did, before layers were unfrozen and the model wrapped anew, takes its place."""
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        trained = {name for name, parameter in self._trained.named_parameters() if id(parameter) in held}
        taken = _number_of(optimizer, self._optimizers)
        if taken is None:
            former = [other for other in self._optimizers if is_anew and self._trained_by[other] & trained]
            taken = min(former, default=number if self._optimizers else self.number)
            for other in former:
                del self._optimizers[other]
            self._optimizers[taken] = _weak(optimizer, self._end)
        self._trained_by[taken] = trained
        return taken

    def _add_loader(self, number: int, loader: Any) -> int:
        self._last_loader = loader
        taken = _number_of(loader, self._loaders)
        if taken is None:
            taken = number if self._loaders else self.number
            self._loaders[taken] = _weak(loader)
        return taken

    def _end(self, _: Any) -> None:
        if not self.optimizers:
            self._trained = None


def tell_replaced(former: list[Any], optimizer: Any) -> None:
    names = " and ".join(type(one).__name__ for one in former)
    print(  # noqa: T201  (to whoever runs the training)
        f"topout: the model was wrapped anew: {type(optimizer).__name__} takes the place of {names} in checkpoints",
        file=sys.stderr,
    )


def _number_of(thing: Any, held: dict[int, Reference]) -> int | None:
    return next((number for number, reference in held.items() if reference() is thing), None)


def _living(held: dict[int, Reference]) -> dict[int, Any]:
    return {number: thing for number, reference in sorted(held.items()) if (thing := reference()) is not None}


def _weak(thing: Any, at_end: Callable[[Any], None] | None = None) -> Reference:
    """What cannot be referred to weakly is kept."""
    try:
        return weakref.ref(thing, at_end)
    except TypeError:
        return lambda: thing
