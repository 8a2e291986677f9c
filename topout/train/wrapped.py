"""What one call of `wrap` was given, for as long as the script has it: a model that nobody trains any more is let go.

The DDP module is held by nobody but the script. Its inner module stays as long as the optimizer that trains it does, so
that a script which keeps only parts of the model has all of it in its checkpoints. The loader stays with them: whoever
draws from its iterator may have dropped the loader itself.
"""

import weakref
from collections.abc import Callable
from typing import Any

from topout.train.parallel import unwrapped


class Wrapped:
    """`number` counts from 1, in the order of wrapping; names in a checkpoint have it from 2 on."""

    def __init__(self, number: int, *, model: Any, optimizer: Any, loader: Any, compression: Any) -> None:
        self.number = number
        self._model, self._inner = _weak(model), _weak(unwrapped(model))
        self._trained = None if optimizer is None else unwrapped(model)
        self._optimizer = _weak(optimizer, self._end)
        self.loader = loader
        self._compression = _weak(compression)

    @property
    def model(self) -> Any:
        """None when it is gone; the inner module where only that is left."""
        wrapped = self._model()
        return self._inner() if wrapped is None else wrapped

    @property
    def optimizer(self) -> Any:
        return self._optimizer()

    @property
    def is_alive(self) -> bool:
        return self.model is not None

    def is_of(self, model: Any) -> bool:
        """Whether it is this one's model that is wrapped again, as after layers were unfrozen."""
        return self._inner() is unwrapped(model)

    def parts(self) -> dict[str, Any]:
        """By the names that they have in a checkpoint."""
        suffix = f"-{self.number}" if self.number > 1 else ""
        found = {
            "model": self.model,
            "optimizer": self.optimizer,
            "loader": self.loader,
            "compression": self._compression(),
        }
        return {f"{name}{suffix}": part for name, part in found.items() if part is not None}

    def _end(self, _: Any) -> None:
        self._trained = None


def _weak(thing: Any, at_end: Callable[[Any], None] | None = None) -> Callable[[], Any]:
    """What cannot be referred to weakly is kept."""
    try:
        return weakref.ref(thing, at_end)
    except TypeError:
        return lambda: thing
