"""What topout leaves on a script's module and parameters: a copy of them is as if it were not there.

A hook is part of the module that it hangs on, and what the hook belongs to would go into every copy: the process group
cannot. `torch.save`, `copy.deepcopy` and `AveragedModel` therefore find a hook whose copy does nothing.
"""

import weakref
from collections.abc import Callable
from typing import Any

_ATTACHED = "_topout_attached"


class Guest:
    """Calls what it was given; its copy is on a module that nobody tunes."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *args: Any) -> Any:
        return self._call(*args)

    def __reduce__(self) -> Any:
        return Guest, (_nothing,)


class Registration:
    """Stands for `ddp.register_comm_hook` until the script calls it: a reducer takes one hook, and has perhaps ours.

    `give_way` is told of the script's, and DDP's own method is back by then. Copies have DDP's own.
    """

    def __init__(self, ddp: Any, give_way: Callable[[Any, Any], None]) -> None:
        self._ddp, self._give_way = ddp, give_way
        ddp.register_comm_hook = self

    def __call__(self, state: object, hook: Callable[..., Any]) -> None:
        self._ddp._check_comm_hook(hook)
        del self._ddp.register_comm_hook
        self._give_way(state, hook)

    def __reduce__(self) -> Any:
        # of the copy, which has nothing but its class's methods at that moment
        return getattr, (self._ddp, "register_comm_hook")


class Attached:
    """Something that is found again by its DDP module (`attached`), and that copies of the module do not have."""

    def __init__(self, ddp: Any, thing: Any) -> None:
        self.thing = thing
        ddp.__dict__[_ATTACHED] = self

    def __reduce__(self) -> Any:
        # whoever reads a stored copy may not have topout
        return dict, ()


def attached(ddp: Any) -> Any:
    """None where nothing was."""
    found = ddp.__dict__.get(_ATTACHED)
    return found.thing if isinstance(found, Attached) else None


def weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """For hooks of parameters: the garbage collector does not see through them, so they must not hold the module."""
    found = weakref.WeakMethod(method)

    def call(*args: Any) -> Any:
        living = found()
        return None if living is None else living(*args)

    return call


def _nothing(*_: Any) -> None:
    pass
