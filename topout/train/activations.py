"""Activation checkpointing: named submodules keep only their inputs for backward and compute the rest again.

About a third more arithmetic for the memory of everything inside them. Names of parameters, types and `deepcopy` stay
as they were: the module changes its class for a subclass with another `forward`. Not for a model that fits: it only
gets slower.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from fnmatch import fnmatchcase
from functools import cache, partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from topout.schema.errors import TopoutError


def checkpoint_activations(model: Any, names: Sequence[str]) -> list[str]:
    """Does so for the submodules of these names, which may be patterns as of files; returns whose they were."""
    found: list[str] = []
    for pattern in names:
        matching = [name for name, _ in model.named_modules() if name and fnmatchcase(name, pattern)]
        if not matching:
            raise TopoutError(
                f"No submodule is called {pattern!r}.",
                why=f"{type(model).__name__} has {_listed([name for name, _ in model.named_children()])}.",
                do="names as in named_modules(), or patterns: checkpoint_activations=('layer1.*',)",
            )
        found += [name for name in matching if name not in found]
    # one inside another would compute the inner part three times
    outermost = [name for name in found if not any(name.startswith(f"{other}.") for other in found)]
    for name in outermost:
        module = model.get_submodule(name)
        if not hasattr(type(module), "without_checkpointing"):
            kind: Any = type(module)
            module.__class__ = _checkpointed(kind)
    return outermost


@cache
def _checkpointed(kind: Any) -> Any:
    """The subclass of `kind` that computes its activations again."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        ordinary = partial(kind.forward, self)
        if not (self.training and torch.is_grad_enabled()):
            return ordinary(*args, **kwargs)
        if torch.compiler.is_compiling():
            # the compiler decides for each operation, and repeats none that changes a buffer
            return checkpoint(ordinary, *args, use_reentrant=False, **kwargs)
        contexts = partial(_contexts, self)
        return checkpoint(ordinary, *args, use_reentrant=False, context_fn=contexts, **kwargs)

    # a class made here has no name to be found under: copies and pickles go by the original one
    def reduced(self: Any, _protocol: Any) -> tuple[Any, ...]:
        return _empty, (kind,), self.__dict__

    body = {"forward": forward, "__reduce_ex__": reduced, "without_checkpointing": kind, "__module__": kind.__module__}
    return type(kind.__name__, (kind,), body)


def _empty(kind: Any) -> Any:
    made = _checkpointed(kind)
    return made.__new__(made)


def _contexts(module: Any) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    return nullcontext(), _statistics_as_they_are(module)


@contextmanager
def _statistics_as_they_are(module: Any) -> Iterator[None]:
    """The second forward must not count the batch a second time in running means and variances."""
    norms = [part for part in module.modules() if isinstance(part, nn.modules.batchnorm._NormBase)]
    kept = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        yield
    finally:
        for norm, (momentum, num_batches) in zip(norms, kept, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, num_batches


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "") if names else "no submodules"
