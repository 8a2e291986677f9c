"""Finds what an optimizer trains and nobody averages: layers unfrozen or added after `wrap`, and a loss that learns.

DDP averages what needed gradients when it was made. Each rank would train the rest by itself, and replicas drift apart
with nothing to show for it. So optimizers are looked over before their first step, where they have got another group,
where a parameter is frozen no longer, and now and then. All ranks see the same, for nothing here looks at gradients.
Not for models that `wrap` was not given, or was given sharded.
"""

import sys
import weakref
from operator import is_
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

from topout.schema.counted import counted
from topout.schema.errors import TopoutError

_LOOK_EVERY = 64
"""Steps; who replaces the parameters within a group is found out by then."""

_averaged: Any = WeakIdKeyDictionary()
"""Parameters that DDP averages, or that the script has told it to leave alone."""
_models: "weakref.WeakSet[Any]" = weakref.WeakSet()
_hooks: list[Any] = []
_seen: "weakref.WeakKeyDictionary[Any, _Seen]" = weakref.WeakKeyDictionary()


def watch(model: Any) -> None:
    """From now on, as it is now: right before DDP takes it, among several ranks."""
    ignored = set(getattr(model, "_ddp_params_and_buffers_to_ignore", ()))
    for name, parameter in model.named_parameters():
        if parameter.requires_grad or name in ignored:
            _averaged[parameter] = True
    if not _hooks:
        # on all optimizers: one that is made anew when layers are unfrozen is the usual case
        _hooks.append(register_optimizer_step_pre_hook(_before_step))
    _models.add(model)
    # what was left out may be averaged from now on
    _seen.clear()


class _Seen:
    """What was found when an optimizer was looked over."""

    def __init__(self, optimizer: Any, held: list[Any], left_out: list[Any]) -> None:
        self._num_groups = len(optimizer.param_groups)
        self._held = held
        self._frozen = [parameter for parameter in left_out if not parameter.requires_grad]
        self._num_steps = 0

    def holds(self, optimizer: Any) -> bool:
        self._num_steps += 1
        if self._num_groups != len(optimizer.param_groups):
            return False
        if self._num_steps % _LOOK_EVERY == 0:
            now = _held_by(optimizer)
            if len(now) != len(self._held) or not all(map(is_, now, self._held)):
                return False
        return not any(parameter.requires_grad for parameter in self._frozen)


def _held_by(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _before_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
    if torch.compiler.is_compiling():
        return
    seen = _seen.get(optimizer)
    if seen is None or not seen.holds(optimizer):
        _look_over(optimizer, is_first=seen is None)


def _look_over(optimizer: Any, *, is_first: bool) -> None:
    held = _held_by(optimizer)
    left_out = [parameter for parameter in held if parameter not in _averaged]
    _seen[optimizer] = _Seen(optimizer, held, left_out)
    trained = [parameter for parameter in left_out if parameter.requires_grad]
    if not trained:
        return
    names = {id(parameter): name for model in _models for name, parameter in model.named_parameters()}
    found = [names[id(parameter)] for parameter in trained if id(parameter) in names]
    if found:
        more = f" and {counted(len(found) - 1, 'more parameter')}" if len(found) > 1 else ""
        raise TopoutError(
            f"The optimizer trains {found[0]}{more}, which {'are' if more else 'is'} not averaged over the ranks.",
            why="Frozen when the model was wrapped, or added later: each rank would get a model of its own.",
            do="wrap again after that: model = ctx.wrap(model.module), or ctx.wrap(model) where all of it was frozen",
        )
    if is_first and len(left_out) < len(held):
        _tell(trained)


def _tell(trained: list[Any]) -> None:
    """Of what lies in no wrapped model; a script may average it by itself."""
    if torch.distributed.is_initialized() and torch.distributed.get_rank() == 0:
        what = counted(len(trained), "parameter")
        print(  # noqa: T201  (to whoever runs the training)
            f"topout: the optimizer trains {what} of no wrapped model: each rank keeps its own. "
            "For a loss that learns: criterion = ctx.wrap(criterion)",
            file=sys.stderr,
        )
