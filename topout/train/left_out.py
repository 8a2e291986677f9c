"""Finds what an optimizer trains and nobody averages: layers unfrozen or added after `wrap`, and a loss that learns.

DDP averages what needed gradients when it was made. Each rank would train the rest by itself, and replicas drift apart
with nothing to show for it. So optimizers are looked over before their first step, where they have got another group,
where a parameter is frozen no longer, and now and then. All ranks see the same, for nothing here looks at gradients.
Not for models that `wrap` was not given, or was given sharded; and what the script averages otherwise is left alone.
"""

import gc
import sys
import weakref
from collections.abc import Iterable
from operator import is_
from typing import Any, Protocol

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

from topout.schema.counted import counted
from topout.schema.errors import TopoutError
from topout.train.trained_past import Marks

_LOOK_EVERY = 64
"""Steps; who replaces the parameters within a group is found out by then."""

_averaged: Any = WeakIdKeyDictionary()
"""Parameters that DDP averages, or that the script has told it to leave alone."""
_models: "weakref.WeakSet[Any]" = weakref.WeakSet()
_made: "weakref.WeakSet[Any]" = weakref.WeakSet()
"""DDP modules of `wrap`, whose parameters `watch` has noted; what was unfrozen since is not among them."""
_averagers: "weakref.WeakSet[Averager]" = weakref.WeakSet()
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


def made(ddp: Any) -> None:
    """Of a model that is watched: right after it."""
    _made.add(ddp)


def has_grown(ddp: Any) -> bool:
    """Whether something learns in a DDP module of `wrap` that nobody averages: unfrozen or added since."""
    if ddp not in _made:
        return False
    learning = [parameter for parameter in ddp.module.parameters() if parameter.requires_grad]
    left = [parameter for parameter in learning if parameter not in _averaged and not is_sharded(parameter)]
    return bool(_averaged_by_nobody(left))


def note_own(ddp: Any) -> None:
    """What a DDP module averages that the script has made; of `wrap`'s that is known."""
    # one whose making failed, or that leaves all to hooks, has no logger
    if ddp not in _made and getattr(ddp, "logger", None) is not None:
        for parameter in _averaged_by(ddp):
            _averaged[parameter] = True


class Averager(Protocol):
    def averaged(self) -> Iterable[Any]:
        """Parameters that the ranks average in another way than by their gradients."""


def leave_to(averager: Averager) -> None:
    """For as long as it lives, what it averages is nobody else's to average."""
    _averagers.add(averager)


class _Seen:
    """What was found when an optimizer was looked over; weakly, as a parameter may hold its optimizer."""

    def __init__(self, optimizer: Any, held: list[Any], left_out: list[Any]) -> None:
        self._num_groups = len(optimizer.param_groups)
        self._held = [weakref.ref(parameter) for parameter in held]
        self._frozen = [weakref.ref(parameter) for parameter in left_out if not parameter.requires_grad]
        self.num_steps = 0
        self.marks = Marks()

    def holds(self, optimizer: Any) -> bool:
        self.num_steps += 1
        if self._num_groups != len(optimizer.param_groups):
            return False
        if self.num_steps % _LOOK_EVERY == 0:
            now = _held_by(optimizer)
            if len(now) != len(self._held) or not all(map(is_, now, [reference() for reference in self._held])):
                return False
        for reference in self._frozen:
            if (parameter := reference()) is not None and parameter.requires_grad:
                return False
        return True


def _held_by(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _before_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
    if torch.compiler.is_compiling():
        return
    seen = _seen.get(optimizer)
    if seen is None or not seen.holds(optimizer):
        _look_over(optimizer, is_first=seen is None)
    elif _made:
        seen.marks.look(optimizer, seen.num_steps, _made, _averaged_by_others)


def _look_over(optimizer: Any, *, is_first: bool) -> None:
    held = _held_by(optimizer)
    left_out = [parameter for parameter in held if parameter not in _averaged]
    _seen[optimizer] = _Seen(optimizer, held, left_out)
    trained = [parameter for parameter in left_out if parameter.requires_grad and not is_sharded(parameter)]
    if not trained:
        return
    names = {id(parameter): name for model in _models for name, parameter in model.named_parameters()}
    is_told = is_first and len(left_out) < len(held)
    if not is_told and not any(id(parameter) in names for parameter in trained):
        return
    trained = _averaged_by_nobody(trained)
    found = [names[id(parameter)] for parameter in trained if id(parameter) in names]
    if found:
        more = f" and {counted(len(found) - 1, 'more parameter')}" if len(found) > 1 else ""
        raise TopoutError(
            f"The optimizer trains {found[0]}{more}, which {'are' if more else 'is'} not averaged over the ranks.",
            why="Frozen when the model was wrapped, or added later: each rank would get a model of its own.",
            do="wrap again after that: model = ctx.wrap(model)",
        )
    if trained and is_told:
        _tell(trained)


def _averaged_by_nobody(trained: list[Any]) -> list[Any]:
    """Of what `wrap` does not average; the script may have a DDP module of its own, or average rarely."""
    elsewhere = _averaged_by_others()
    left = [parameter for parameter in trained if id(parameter) not in elsewhere]
    if left:
        # every object there is: once, where the training would end or be told otherwise. First what is gone already
        gc.collect()
        for thing in gc.get_objects():
            # by its type: proxies among them answer for others
            if issubclass(type(thing), DistributedDataParallel):
                note_own(thing)
    return [parameter for parameter in left if parameter not in _averaged]


def _averaged_by_others() -> set[int]:
    """In another way than by their gradients, by id."""
    return {id(parameter) for averager in _averagers for parameter in averager.averaged()}


def _averaged_by(ddp: Any) -> list[Any]:
    """What needs gradients; nothing where that is more than when it was made, for torch does not say which it has."""
    learning = {name: parameter for name, parameter in ddp.module.named_parameters() if parameter.requires_grad}
    num_wanted = sum(name not in ddp.parameters_to_ignore for name in learning)
    num_averaged = ddp._get_ddp_logging_data().get("num_parameter_tensors", num_wanted)
    return list(learning.values()) if num_wanted <= num_averaged else []


def is_sharded(parameter: Any) -> bool:
    return type(parameter).__name__ == "DTensor"


def _tell(trained: list[Any]) -> None:
    """Of what lies in no wrapped model; a script may average it by itself."""
    if torch.distributed.is_initialized() and torch.distributed.get_rank() == 0:
        what = counted(len(trained), "parameter")
        print(  # noqa: T201  (to whoever runs the training)
            f"topout: the optimizer trains {what} of no wrapped model: each rank keeps its own. "
            "For a loss that learns: criterion = ctx.wrap(criterion)",
            file=sys.stderr,
        )
