"""Taps optimizers through torch's own global step hooks; `turns` tells from them where one step ends.

Not for optimizers compiled as a whole, which call no hooks.
"""

from collections.abc import Callable
from functools import wraps
from threading import get_ident
from types import ModuleType
from typing import Any
from weakref import ref

import torch

from topout.record.clock import now_ns
from topout.record.recorder import OFF_MAIN, Recorder
from topout.record.torch_taps import sizes
from topout.record.turns import RehearsalOver, StepCounter
from topout.schema.event import NOT_GIVEN, Kind


def install(module: ModuleType, recorder: Recorder) -> None:
    taps = _StepTaps(recorder)
    recorder.skipped_step = taps.skipped
    module.register_optimizer_step_pre_hook(taps.before)
    module.register_optimizer_step_post_hook(taps.after)


class _StepTaps:
    """What runs before and after each optimizer's step."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._counter = StepCounter()
        self._optimizers: dict[int, tuple[int, ref[Any]]] = {}
        """By identity: number, and the optimizer while it lives."""
        self._num_optimizers = 0
        self._stepping = recorder.code(Kind.OPTIMIZER)
        self._closure = recorder.code(Kind.CLOSURE)
        self._steps_asked = recorder.settings.steps
        self._start_ns = 0

    def before(self, _optimizer: Any, args: Any, kwargs: Any) -> Any:
        """What torch calls `step` with instead, where that has a closure; else None."""
        if torch.compiler.is_compiling():
            return None
        if self._recorder.backwards is not None:
            self._recorder.backwards.give_way()
        if self._recorder.num_steps == 0:
            _refuse_lonely_ranks(self._recorder)
            self._recorder.begin_training(now_ns())
        self._start_ns = now_ns()
        # the optimizer itself is the first
        if len(args) > 1 and _is_closure(args[1]):
            return (args[0], self._noted(args[1]), *args[2:]), kwargs
        if _is_closure(kwargs.get("closure")):
            return args, {**kwargs, "closure": self._noted(kwargs["closure"])}
        return None

    def _noted(self, closure: Callable[..., Any]) -> Callable[..., Any]:
        """The same, and a row for each call: an optimizer's own work between two of them is no forward."""

        @wraps(closure)
        def call(*args: Any, **kwargs: Any) -> Any:
            start_ns = now_ns()
            try:
                return closure(*args, **kwargs)
            finally:
                code = self._closure if get_ident() == self._recorder.main_thread else self._closure + OFF_MAIN
                self._recorder.emit((code, start_ns, now_ns() - start_ns, NOT_GIVEN, NOT_GIVEN))

        return call

    def after(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        recorder = self._recorder
        start_ns, end_ns = self._start_ns, now_ns()
        known = self._optimizers.get(id(optimizer))
        number = known[0] if known is not None and known[1]() is optimizer else self._new_number(optimizer)
        code = self._stepping if get_ident() == recorder.main_thread else self._stepping + OFF_MAIN
        recorder.emit((code, start_ns, end_ns - start_ns, NOT_GIVEN, number))
        recorder.num_optimizer_steps += 1
        if recorder.mark is not None:
            recorder.mark("optimizer")
        if self._counter.stepped(number):
            recorder.end_step(end_ns)
            if recorder.num_steps == 2:
                self._record_sizes()
        if self._steps_asked is not None:
            self._end_rehearsal()

    def skipped(self, optimizer: Any) -> None:
        """A step that a gradient scaler left out."""
        self._start_ns = now_ns()
        self.after(optimizer, (), {})

    def _new_number(self, optimizer: Any) -> int:
        # another may have been where this one is
        self._optimizers.pop(id(optimizer), None)
        self._counter.keep({number for number, reference in self._optimizers.values() if reference() is not None})
        number, self._num_optimizers = self._num_optimizers, self._num_optimizers + 1
        self._optimizers[id(optimizer)] = (number, ref(optimizer))
        return number

    def _record_sizes(self) -> None:
        recorder = self._recorder
        recorder.fact(**getattr(recorder.feeding, "_topout_facts", {}))
        alive = [optimizer for _, reference in self._optimizers.values() if (optimizer := reference()) is not None]
        recorder.guard(sizes.record_sizes, alive, recorder)

    def _end_rehearsal(self) -> None:
        recorder = self._recorder
        is_over = recorder.num_steps >= (self._steps_asked or 0) and self._counter.is_turn_complete
        if is_over and recorder.is_of_rank:
            raise RehearsalOver(0)


def _is_closure(given: Any) -> bool:
    """And not an object that can be called beside what else it is, such as a model."""
    return callable(given) and not isinstance(given, (type, torch.nn.Module))


def _refuse_lonely_ranks(recorder: Recorder) -> None:
    """Several ranks and no process group: N copies of a single-device script would each train alone."""
    if recorder.settings.world_size > 1 and recorder.is_of_rank:
        from torch import distributed

        if not (distributed.is_available() and distributed.is_initialized()):
            recorder.tell("single-device")
            raise RehearsalOver(2)
