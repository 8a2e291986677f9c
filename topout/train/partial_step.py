"""An optimizer's own arithmetic on some of its parameters, with gradients that are given and not the parameters' own.

For optimizers that treat every parameter by itself: doing them in parts gives the bits of doing them at once.
"""

import copy
import weakref
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from topout.schema.errors import TopoutError

KINDS = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)

Settings = Sequence[Mapping[str, Any]]
"""Of each group of parameters: learning rate and the like."""


_in_parts: "weakref.WeakSet[Any]" = weakref.WeakSet()


class PartialStep:
    """State is the optimizer's: what a part has left behind the next whole step goes on with."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        _in_parts.add(optimizer)
        # of the same class; it gets the parameters of one part at a time, and the state as it is then
        self._partial = copy.copy(optimizer)
        self._step = getattr(type(optimizer).step, "__wrapped__", type(optimizer).step)

    def settings(self) -> Settings:
        """As they are now; schedules change them between steps."""
        return [
            {name: _kept(value) for name, value in group.items() if name != "params"}
            for group in self._optimizer.param_groups
        ]

    def apply(self, gradients: Mapping[Any, Any], settings: Settings) -> None:
        """Parameters of other optimizers are left alone. Not by two threads at a time."""
        state: dict[Any, Any] = defaultdict(dict)
        groups = []
        for group, values in zip(self._optimizer.param_groups, settings, strict=True):
            own = [parameter for parameter in group["params"] if parameter in gradients]
            # of the same memory and version, with a gradient of its own: the parameter's may be taken away meanwhile
            stand_ins = [parameter.detach() for parameter in own]
            for parameter, stand_in in zip(own, stand_ins, strict=True):
                stand_in.grad = gradients[parameter]
                state[stand_in] = self._optimizer.state[parameter]
            groups.append({**values, "params": stand_ins})
        self._partial.param_groups, self._partial.state = groups, state
        with torch.no_grad():
            self._step(self._partial)


def is_stepped_in_parts(optimizer: Any) -> bool:
    """Whether its parameters change before its `step()` is called."""
    return optimizer in _in_parts


def check_kind(optimizer: Any, compress: str | None, option: str) -> None:
    """Raises where `option` of `wrap` cannot be had: it updates parameters in parts."""
    why = None
    if optimizer is None:
        why = "It updates parameters as their averaged gradients come, and no optimizer was given."
    elif compress is not None:
        why = f"compress={compress!r} averages in its own way."
    elif type(optimizer) not in KINDS:
        why = f"{type(optimizer).__name__} may not treat every parameter by itself, as torch's SGD, Adam and AdamW do."
    if why is not None:
        raise TopoutError(f"{option}=True cannot be had here.", why=why, do="leave it out")


def check_no_closure(args: Sequence[Any], kwargs: Mapping[str, Any], option: str) -> None:
    """`args` as a hook of `step` gets them; the first is the optimizer itself."""
    if any(given is not None for given in (*args[1:], kwargs.get("closure"))):
        raise TopoutError(
            f"optimizer.step(closure) and {option} do not go together.",
            why="A closure computes gradients inside the step, and they have been applied by then.",
            do=f"leave out {option}=True",
        )


def changed(what: str, option: str) -> TopoutError:
    return TopoutError(
        f"With {option} {what} between backward and optimizer.step().",
        why="Each group was updated when its gradients had come; clipping, a loss scaler or the like came too late.",
        do=f"leave out {option}=True",
    )


def twice(option: str) -> TopoutError:
    return TopoutError(
        f"With {option} a second backward came before optimizer.step().",
        why="Each averaging backward updates the parameters, so there is one for a step.",
        do=f"accumulate under model.no_sync(), or leave out {option}=True",
    )


def _kept(value: Any) -> Any:
    """A learning rate may be a tensor, which schedules change in place."""
    return value.clone() if isinstance(value, torch.Tensor) else value
