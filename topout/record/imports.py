"""Calls back when a module has been imported, so that a tap is in place before the script can use what it taps.

Imports nothing by itself: a script that never imports torch runs without it.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any, TypeAlias

Callback: TypeAlias = "Callable[[ModuleType], None]"


class AfterImport:
    """Finds nothing itself: lets the other finders find, and adds a call after the module has run.

    A MetaPathFinder by its method; importing that class would load a fifth of all that a rank loads before its script.
    """

    def __init__(self, callbacks: dict[str, list[Callback]]) -> None:
        self._callbacks = callbacks

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        callbacks = self._callbacks.get(name)
        if callbacks is None:
            return None
        # those before this one have been asked, and another of this kind would ask back
        finders: list[Any] = sys.meta_path
        place = finders.index(self)
        for finder in sys.meta_path[place + 1 :]:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                break
        else:
            return None
        loader = spec.loader
        if loader is None or not hasattr(loader, "exec_module"):
            return spec
        run_module = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run_module(module)
            for callback in callbacks:
                callback(module)

        # on the instance, so that the module keeps the loader it would have without us
        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def call_after_import(callbacks: dict[str, list[Callback]], *, before_others: bool = False) -> None:
    """Registers callbacks by module name; a module that is already there is served at once.

    Of several registrations the latest is called last, so what it wraps lies around what the others wrapped;
    `before_others` puts it ahead of all earlier ones, and so inside.
    """
    for name in list(callbacks):
        if name in sys.modules:
            for callback in callbacks.pop(name):
                callback(sys.modules[name])
    finders: list[Any] = sys.meta_path
    ours = [place for place, finder in enumerate(finders) if isinstance(finder, AfterImport)]
    # whoever is asked last is called first
    finders.insert(ours[-1] + 1 if before_others and ours else 0, AfterImport(callbacks))
