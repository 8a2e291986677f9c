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

MORE = "+"
"""In names of a checkpoint: before the number of a further optimizer or loader of one model."""


class Wrapped:
    """`number` counts models from 1, in the order of wrapping; names in a checkpoint have it from 2 on.

    A model may have several optimizers and loaders: `loader+2` is the second that the script still has, whatever came
    before. So a script that begins in its second phase finds what it saved there.
    """

    def __init__(self, number: int, *, model: Any, optimizer: Any, loader: Any, compression: Any) -> None:
        self.number = number
        self._inner = weak(unwrapped(model))
        self._model = self._compression = weak(None)
        self._learning: list[str] = []
        self._trained: Any = None
        self._last_loader: Any = None
        self._optimizers: dict[int, Reference] = {}
        self._loaders: dict[int, Reference] = {}
        self._trained_by: dict[int, set[str]] = {}
        self.add(model=model, optimizer=optimizer, loader=loader, compression=compression)

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
    def has_several(self) -> bool:
        """The same on all ranks, whatever is gone on some."""
        return any(len(held) > 1 for _, held in self._kinds())

    @property
    def is_alive(self) -> bool:
        return self.model is not None

    def is_of(self, model: Any) -> bool:
        """Whether it is this one's model that is wrapped again, as after layers were unfrozen."""
        return self._inner() is unwrapped(model)

    def add(self, *, model: Any, optimizer: Any, loader: Any, compression: Any) -> None:
        """What one more call was given, beside what others were or in its place.

        All ranks decide alike, so nothing here depends on what is gone: garbage is collected when it suits each.
        """
        learning = [name for name, parameter in unwrapped(model).named_parameters() if parameter.requires_grad]
        is_other = model is not self._model()
        # a world of one has no DDP module that could be another
        is_anew = learning != self._learning and (is_other or model is unwrapped(model))
        self._learning = learning
        if is_other:
            self._model, self._compression = weak(model), weak(compression)
        if optimizer is not None:
            self._trained = unwrapped(model)
            self._add_optimizer(optimizer, is_anew=is_anew)
        if loader is not None:
            self._last_loader = loader
            if _number_of(loader, self._loaders) is None:
                self._loaders[1 + max(self._loaders, default=0)] = weak(loader)

    def parts(self) -> dict[str, Any]:
        """By the names that they have in a checkpoint."""
        suffix = f"-{self.number}" if self.number > 1 else ""
        found = {f"model{suffix}": self.model}
        for kind, held in self._kinds():
            for place, part in enumerate(_living(held).values(), 1):
                found[f"{kind}{suffix}{f'{MORE}{place}' if place > 1 else ''}"] = part
        found[f"compression{suffix}"] = self._compression()
        return {name: part for name, part in found.items() if part is not None}

    def living(self) -> list[str]:
        """What the script still has, in words that mean the same on all ranks; the model is the first."""
        kept = [f"{kind} {self.number}{MORE}{number}" for kind, held in self._kinds() for number in _living(held)]
        return [f"model {self.number}", *kept]

    def keep(self, living: Collection[str]) -> None:
        """Only these: the others are gone on some rank."""
        for kind, held in self._kinds():
            for number in [number for number in held if f"{kind} {self.number}{MORE}{number}" not in living]:
                del held[number]

    def _kinds(self) -> list[tuple[str, dict[int, Reference]]]:
        return [("optimizer", self._optimizers), ("loader", self._loaders)]

    def _add_optimizer(self, optimizer: Any, *, is_anew: bool) -> None:
        """One that trains what another did, before layers were unfrozen and the model wrapped anew, takes its place."""
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        trained = {name for name, parameter in self._trained.named_parameters() if id(parameter) in held}
        number = _number_of(optimizer, self._optimizers)
        if number is None:
            former = [other for other in self._optimizers if is_anew and self._trained_by[other] & trained]
            number = min(former, default=1 + max(self._trained_by, default=0))
            for other in former:
                del self._optimizers[other]
            self._optimizers[number] = weak(optimizer, self._end)
        self._trained_by[number] = trained

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


def weak(thing: Any, at_end: Callable[[Any], None] | None = None) -> Reference:
    """What cannot be referred to weakly is kept."""
    try:
        return weakref.ref(thing, at_end)
    except TypeError:
        return lambda: thing
