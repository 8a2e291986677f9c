"""Gives loader workers the cores that their rank was started with, whatever an OpenMP library has made of them.

With OMP_PROC_BIND and its like, importing torch narrows the main thread to one core, forked workers inherit that, and
spawned ones do it to themselves (pytorch#91989, #99625, #101850). So the cores are noted when the rank begins,
before torch is imported, and are back in force while a loader starts its workers. Only where such a variable is
set: a script that narrows itself without one means it.
"""

from __future__ import annotations

import os

from topout.host.openmp_traps import traps_set
from topout.schema.ignoring import ignoring

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

LOADER_MODULES = ("torch.utils.data.dataloader", "torchdata.stateful_dataloader.stateful_dataloader")
_granted: frozenset[int] = frozenset()


def note_granted() -> None:
    """To be called when the rank begins, before anything is imported that may narrow it."""
    global _granted
    _granted = frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()


def install() -> None:
    """For a rank without a recorder; with one, the loader's tap calls `keep_cores`."""
    from topout.record.imports import call_after_import

    def keep(module: ModuleType) -> None:
        keep_cores(getattr(module, "DataLoader", None) or getattr(module, "StatefulDataLoader", None))

    call_after_import({name: [keep] for name in LOADER_MODULES})


def keep_cores(loader_class: Any) -> None:
    if loader_class is None or not _granted:
        return
    # a rank without torch does not wait for it
    from functools import wraps

    original = loader_class.__iter__

    @wraps(original)
    def iterate(self: Any) -> Any:
        if not self.num_workers or not traps_set(os.environ):
            return original(self)
        with _AsGranted(self):
            return original(self)

    loader_class.__iter__ = iterate


class _AsGranted:
    """Workers are children of the calling thread, so its cores are what they inherit; it gets its own back."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._narrowed: set[int] | None = None
        self._hidden: dict[str, str] = {}

    def __enter__(self) -> None:
        # whatever goes wrong here, the loader starts as it would have
        with ignoring(Exception):
            if not _forks(self._loader):
                # a fresh process reads them again, and narrows itself
                self._hidden = {name: os.environ.pop(name) for name in traps_set(os.environ)}
            before = os.sched_getaffinity(0)
            os.sched_setaffinity(0, _granted)
            self._narrowed = before

    def __exit__(self, *error: object) -> None:
        os.environ.update(self._hidden)
        if self._narrowed is not None:
            with ignoring(OSError):
                os.sched_setaffinity(0, self._narrowed)


def _forks(loader: Any) -> bool:
    import multiprocessing

    context = getattr(loader, "multiprocessing_context", None) or multiprocessing
    return bool(context.get_start_method() == "fork")
