"""Taps optimizers through torch's own global step hooks, and tells from them where one step ends and the next begins.

The optimizer that steps first leads: a step of the job ends when the leader has stepped. Where several take turns (a
GAN), the others' steps lie inside. A leader that falls silent hands over to the one that goes on.
"""

from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import torch

from topout.record.clock import now_ns
from topout.record.recorder import Recorder
from topout.record.torch_taps import sizes
from topout.schema.event import NOT_GIVEN, Kind

_SILENT_AFTER = 8
"""So many steps of others in a row, and the leader counts as finished."""


class RehearsalOver(SystemExit):
    """Ends a script after `--steps`; an exit, not an error, so that `except Exception` lets it pass."""


class StepCounter:
    """Who leads, and what has stepped since the leader last did."""

    def __init__(self) -> None:
        self.numbers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self.leader = NOT_GIVEN
        self.since_leader: list[int] = []
        self.expected: frozenset[int] = frozenset()
        """Optimizers that stepped in the last full turn."""

    def number(self, optimizer: Any) -> int:
        found = self.numbers.get(optimizer)
        if found is None:
            found = self.numbers[optimizer] = len(self.numbers)
        return found

    def stepped(self, number: int) -> bool:
        """True when this ends a step of the job."""
        if self.leader == NOT_GIVEN or len(self.since_leader) >= _SILENT_AFTER:
            self.leader = number
        if number == self.leader:
            self.expected = frozenset((*self.since_leader, number))
            self.since_leader = []
            return True
        self.since_leader.append(number)
        return False

    @property
    def is_turn_complete(self) -> bool:
        """Every optimizer of the last turn has stepped again: a good moment to end a rehearsal."""
        return self.expected <= {self.leader, *self.since_leader}


def install(module: ModuleType, recorder: Recorder) -> None:
    counter = StepCounter()
    stepping = recorder.code(Kind.OPTIMIZER)
    started: dict[int, int] = {}
    settings = recorder.settings

    def before(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if recorder.num_steps == 0:
            _refuse_lonely_ranks(recorder)
        start_ns = now_ns()
        recorder.begin_training(start_ns)
        started[id(optimizer)] = start_ns

    def after(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        number = counter.number(optimizer)
        recorder.span(stepping, started.pop(id(optimizer), now_ns()), NOT_GIVEN, number)
        recorder.num_optimizer_steps += 1
        recorder.mark("optimizer")
        if counter.stepped(number):
            recorder.end_step()
            if recorder.num_steps == 2:
                recorder.fact(**recorder.loader_facts)
                recorder.guard(sizes.record_sizes, list(counter.numbers), recorder)
        if settings.steps is not None and recorder.num_steps >= settings.steps and counter.is_turn_complete:
            raise RehearsalOver(0)

    recorder.skipped_step = lambda optimizer: after(optimizer, (), {})
    module.register_optimizer_step_pre_hook(before)
    module.register_optimizer_step_post_hook(after)


def _refuse_lonely_ranks(recorder: Recorder) -> None:
    """Several ranks and no process group: N copies of a single-device script would each train alone."""
    if recorder.settings.world_size > 1:
        from torch import distributed

        if not (distributed.is_available() and distributed.is_initialized()):
            recorder.tell("single-device")
            raise RehearsalOver(2)
