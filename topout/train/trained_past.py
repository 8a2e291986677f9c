"""Finds gradients that nobody averages because the script trains past the DDP module: through the bare model within it.

DDP averages what came through its own forward. A trainer or a loss function that still calls the model of before `wrap`
computes gradients of each rank's own, and replicas drift apart with nothing to show for it. So at a few steps of an
optimizer it is seen whether DDP's forward has run since the step before. Only where it has not do ranks show each other
what they hold: gradients and parameters that both differ end the training. What a script averages by itself is equal
everywhere, and left alone. Not for steps between those few, which it costs nothing.
"""

import itertools
import json
import weakref
import zlib
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from topout.schema.errors import TopoutError
from topout.train.lost_gradient import refuse_lost
from topout.train.store_notes import await_all, leave

_LOOK_EVERY = 64
"""Steps; before, at those of which the powers of two count: most scripts do it from the first on, or never."""
_MOST_TENSORS, _MOST_VALUES = 16, 65536
_WAIT = timedelta(seconds=30)
"""Ranks that do not meet in backward may be far apart; who comes last has what all others said."""

_SYNC = "require_forward_param_sync"
"""Of a DDP module: written by each of its forwards."""
_exchanges = itertools.count()
_silent: set[int] = set()
"""Exchanges to which some rank did not come; none is begun after one."""


class Mark:
    """As true as what it stands in place of; gone when DDP's forward has run."""

    def __init__(self, is_wanted: bool) -> None:
        self._is_wanted = is_wanted

    def __bool__(self) -> bool:
        return self._is_wanted

    def __reduce__(self) -> tuple[type[bool], tuple[bool]]:
        """A model that is saved whole has nothing of ours in it."""
        return bool, (self._is_wanted,)


class Marks:
    """Those that one optimizer has set at the step before."""

    def __init__(self) -> None:
        self._set: list[tuple[weakref.ref[Any], Mark]] = []

    def look(self, optimizer: Any, num_steps: int, made: Iterable[Any], others: Callable[[], set[int]]) -> None:
        """Before its steps; `made` are the DDP modules of `wrap`, `others` tells what is averaged otherwise, by id."""
        if self._set:
            before = [(reference(), mark) for reference, mark in self._set]
            self._set = []
            passed = [ddp for ddp, mark in before if ddp is not None and ddp.__dict__.get(_SYNC) is mark]
            if passed:
                _refuse_drift(optimizer, passed, _ids_in(set(made).difference(passed)) | others())
        if _is_due(num_steps + 1):
            self._set = [(weakref.ref(ddp), _marked(ddp)) for ddp in made]
            refuse_lost(optimizer, made)


def _is_due(num_steps: int) -> bool:
    return num_steps > 1 and (num_steps & (num_steps - 1) == 0 or num_steps % _LOOK_EVERY == 0)


def _marked(ddp: Any) -> Mark:
    found = ddp.__dict__.get(_SYNC)
    if not isinstance(found, Mark):
        # past nn.Module.__setattr__, which takes its time
        ddp.__dict__[_SYNC] = found = Mark(bool(found))
    return found


def _ids_in(models: Iterable[Any]) -> set[int]:
    return {id(parameter) for model in models for parameter in model.parameters()}


def _refuse_drift(optimizer: Any, passed: Sequence[Any], averaged: set[int]) -> None:
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]} - averaged
    found = {
        name: parameter
        for ddp in passed
        for name, parameter in ddp.module.named_parameters()
        if id(parameter) in held and _has_gradient(parameter)
    }
    names = list(found)[:_MOST_TENSORS]
    if not names or _silent:
        return
    told = _exchanged([[_print_of(found[name].grad), _print_of(found[name])] for name in names], passed[0])
    for rank, row in told.items():
        for name, mine, theirs in zip(names, told[0], row, strict=False):
            if mine[0] != theirs[0] and mine[1] != theirs[1]:
                raise TopoutError(
                    "The model was trained past what wrap returned.",
                    why=f"Only a call of that averages gradients. {name} and its gradient differ between rank 0 and "
                    f"rank {rank}: somebody still calls the model of before, or another method of it than forward.",
                    do="model = ctx.wrap(model) first, then make the trainer or loss function that calls it; what "
                    "other methods compute belongs into forward",
                )


def _has_gradient(parameter: Any) -> bool:
    """One of its own class is still under way, or prepared: it came through DDP."""
    gradient = parameter.grad
    return type(gradient) is torch.Tensor and gradient.layout is torch.strided


def _print_of(tensor: Any) -> int:
    some = tensor.detach().reshape(-1)[:_MOST_VALUES].cpu().contiguous()
    return zlib.crc32(some.view(torch.uint8).numpy().tobytes())


def _exchanged(mine: list[list[int]], ddp: Any) -> dict[int, list[list[int]]]:
    """What each rank said, by rank from 0 on; nothing where one does not come."""
    if not dist.is_initialized():
        return {}
    number, group = next(_exchanges), dist.get_process_group_ranks(ddp.process_group)
    subject = f"trained past/{number}"
    try:
        leave(subject, json.dumps(mine))
        return dict(enumerate(map(json.loads, await_all(subject, group, _WAIT))))
    except RuntimeError:
        _silent.add(number)
        return {}
