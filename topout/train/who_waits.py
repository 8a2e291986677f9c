"""Which module must wait for which parameter before it computes, found by watching a few forwards.

    watched = WhoWaits(model, wait)         # everybody waits for everything, by calling `wait`
    ...                                     # forwards, in training
    watched.finish()                        # module -> parameters

A module waits for its own parameters, and for those of modules in it that are never called themselves. A parameter that
is used before its module is called (a weight borrowed from a later layer) is waited for by whoever was called last
before. Not for a module that borrows in some steps alone, none of them watched.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class WhoWaits(TorchFunctionMode):  # type: ignore[misc]
    """In force during forwards of the model itself: what wraps it looks at parameters, too."""

    def __init__(self, model: Any, wait: Callable[[], None]) -> None:
        super().__init__()
        self._model, self._wait = model, wait
        self._called: set[Any] = set()
        self._last: Any = None
        self._unused: dict[int, Any] = {}
        """Parameters that this forward has not used yet, by id: comparing tensors would be a use."""
        self._users: dict[Any, list[Any]] = {}
        self._is_on = False
        self._handles = [module.register_forward_pre_hook(self._call, prepend=True) for module in model.modules()]
        self._handles.append(model.register_forward_hook(self._end, always_call=True))

    def finish(self) -> dict[Any, list[Any]]:
        """Modules that wait for nothing are left out. Not inside a forward."""
        for handle in self._handles:
            handle.remove()
        modules = dict(self._model.named_modules(remove_duplicate=False))
        found: dict[Any, dict[int, Any]] = {}
        for name, module in modules.items():
            parts = name.split(".") if name else []
            above = [modules[".".join(parts[:count])] for count in range(len(parts), -1, -1)]
            waiting = next((one for one in above if one in self._called), self._model)
            found.setdefault(waiting, {}).update({id(p): p for p in module.parameters(recurse=False)})
        for module, parameters in self._users.items():
            found.setdefault(module, {}).update({id(p): p for p in parameters})
        return {module: list(parameters.values()) for module, parameters in found.items() if parameters}

    def _call(self, module: Any, _: Any) -> None:
        self._wait()
        if module is self._model and not self._is_on and module.training and torch.is_grad_enabled():
            self._unused = {id(parameter): parameter for parameter in module.parameters()}
            self._is_on = True
            self.__enter__()
        if self._is_on:
            self._called.add(module)
            self._last = module

    def _end(self, *_: Any) -> None:
        if self._is_on:
            self.__exit__(None, None, None)
            self._is_on = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        # such as its shape: not what is in it
        is_an_attribute = func.__name__ == "__get__" and not isinstance(result, torch.Tensor)
        for value in () if is_an_attribute else _inside((args, kwargs)):
            parameter = self._unused.pop(id(value), None)
            if parameter is not None:
                self._users.setdefault(self._last, []).append(parameter)
        return result


def _inside(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from _inside(one)
    elif isinstance(value, dict):
        yield from _inside(list(value.values()))
    else:
        yield value
