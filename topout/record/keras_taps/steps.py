"""Taps Keras' list of callbacks: it is told before and after every train function, in every version and backend.

What the script's own callbacks do stands outside the step's computing: they are called after our first look and
before our last.
"""

import functools
from types import ModuleType
from typing import Any

from topout.record.clock import now_ns
from topout.record.keras_taps import facts
from topout.record.keras_taps.lonely import refuse_lonely_ranks
from topout.record.keras_taps.watch import Watch
from topout.record.turns import RehearsalOver


def install(module: ModuleType, watch: Watch) -> None:
    callbacks: Any = module.CallbackList
    first_batch = _FirstBatch()
    _tap_begin(callbacks, watch)
    _tap_end(callbacks, watch)
    _tap_batch_begin(callbacks, watch, first_batch)
    _tap_batch_end(callbacks, watch, first_batch)


class _FirstBatch:
    """Of the execution that is under way."""

    number: Any = 0


def _tap_begin(callbacks: Any, watch: Watch) -> None:
    original = callbacks.on_train_begin

    @functools.wraps(original)
    def on_train_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        model = getattr(self, "model", None)
        refuse_lonely_ranks(model, watch)
        watch.is_fitting = True
        watch.iterator += 1
        watch.recorder.guard(facts.record_model, model, watch)
        return original(self, *args, **kwargs)

    callbacks.on_train_begin = on_train_begin


def _tap_end(callbacks: Any, watch: Watch) -> None:
    original = callbacks.on_train_end

    @functools.wraps(original)
    def on_train_end(self: Any, *args: Any, **kwargs: Any) -> Any:
        watch.recorder.guard(watch.leave_fit)
        watch.recorder.guard(facts.record_sizes, getattr(self, "model", None), watch)
        return original(self, *args, **kwargs)

    callbacks.on_train_end = on_train_end


def _tap_batch_begin(callbacks: Any, watch: Watch, first_batch: _FirstBatch) -> None:
    original = callbacks.on_train_batch_begin

    @functools.wraps(original)
    def on_train_batch_begin(self: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, batch, *args, **kwargs)
        first_batch.number = batch
        watch.begin_execution()
        return result

    callbacks.on_train_batch_begin = on_train_batch_begin


def _tap_batch_end(callbacks: Any, watch: Watch, first_batch: _FirstBatch) -> None:
    original = callbacks.on_train_batch_end

    @functools.wraps(original)
    def on_train_batch_end(self: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        watch.recorder.guard(_end, watch, first_batch.number, batch)
        result = original(self, batch, *args, **kwargs)
        end_rehearsal(watch)
        return result

    callbacks.on_train_batch_end = on_train_batch_end


def _end(watch: Watch, first_batch: Any, last_batch: Any) -> None:
    """With steps_per_execution the last batch of an execution is not its first."""
    watch.end_execution(int(last_batch) - int(first_batch) + 1)


def end_rehearsal(watch: Watch) -> None:
    asked = watch.recorder.settings.steps
    if asked is not None and watch.recorder.is_of_rank:
        watch.close_step(now_ns())
        if watch.recorder.num_steps >= asked:
            raise RehearsalOver(0)
