"""Taps optimizers through torch's own global step hooks, and tells from them where one step ends and the next begins.

The optimizer that steps first leads: a step of the job ends when the leader has stepped. Where several take turns (a
GAN), the others' steps lie inside. A leader that falls silent hands over to the one that goes on.
"""

from threading import get_ident
from types import ModuleType
from typing import Any
from weakref import ref

import torch

from topout.record.clock import now_ns
from topout.record.recorder import OFF_MAIN, Recorder
from topout.record.torch_taps import sizes
from topout.schema.event import NOT_GIVEN, Kind

_SILENT_AFTER = 8
"""So many steps of others in a row, and the leader counts as finished."""


class RehearsalOver(SystemExit):
    """Ends a script after `--steps`; an exit, not an error, so that `except Exception` lets it pass."""


class StepCounter:
    """Who leads, and what has stepped since the leader last did."""

    def __init__(self) -> None:
        self.leader = NOT_GIVEN
        self.since_leader: list[int] = []
        self.expected: frozenset[int] = frozenset()
        """Optimizers that stepped in the last full turn."""

    def stepped(self, number: int) -> bool:
        """True when this ends a step of the job."""
        if number == self.leader and not self.since_leader:  # the only optimizer there is, nearly always
            self.expected = frozenset()
            return True
        if self.leader == NOT_GIVEN or len(self.since_leader) >= _SILENT_AFTER:
            self.leader = number
        if number == self.leader:
            self.expected = frozenset(self.since_leader)
            self.since_leader = []
            return True
        self.since_leader.append(number)
        return False

    @property
    def is_turn_complete(self) -> bool:
        """Every optimizer of the last turn has stepped again: a good moment to end a rehearsal."""
        return self.expected <= {self.leader, *self.since_leader}


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
        self._stepping = recorder.code(Kind.OPTIMIZER)
        self._steps_asked = recorder.settings.steps
        self._start_ns = 0

    def before(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if self._recorder.num_steps == 0:
            _refuse_lonely_ranks(self._recorder)
            self._recorder.begin_training(now_ns())
        self._start_ns = now_ns()

    def after(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        recorder = self._recorder
        start_ns, end_ns = self._start_ns, now_ns()
        known = self._optimizers.get(id(optimizer))
        number = known[0] if known is not None else self._new_number(optimizer)
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
        number = len(self._optimizers)
        self._optimizers[id(optimizer)] = (number, ref(optimizer))
        return number

    def _record_sizes(self) -> None:
        recorder = self._recorder
        recorder.fact(**getattr(recorder.feeding, "_topout_facts", {}))
        alive = [optimizer for _, reference in self._optimizers.values() if (optimizer := reference()) is not None]
        recorder.guard(sizes.record_sizes, alive, recorder)

    def _end_rehearsal(self) -> None:
        if self._recorder.num_steps >= (self._steps_asked or 0) and self._counter.is_turn_complete:
            raise RehearsalOver(0)


def _refuse_lonely_ranks(recorder: Recorder) -> None:
    """Several ranks and no process group: N copies of a single-device script would each train alone."""
    if recorder.settings.world_size > 1:
        from torch import distributed

        if not (distributed.is_available() and distributed.is_initialized()):
            recorder.tell("single-device")
            raise RehearsalOver(2)
