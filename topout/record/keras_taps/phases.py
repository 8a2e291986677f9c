"""Taps what a Keras model does besides fit: evaluate, predict, and the loops that call train_on_batch themselves.

The validation inside fit is a call of evaluate, too.
"""

import functools
from types import ModuleType
from typing import Any
from weakref import ref

from topout.record.clock import now_ns
from topout.record.keras_taps import facts
from topout.record.keras_taps.lonely import refuse_lonely_ranks
from topout.record.keras_taps.steps import end_rehearsal
from topout.record.keras_taps.watch import Watch
from topout.record.turns import StepCounter
from topout.schema.event import NOT_GIVEN, Kind

_EVALUATES = ("evaluate", "predict", "test_on_batch", "predict_on_batch")
_TRAINERS = ("TensorFlowTrainer", "JAXTrainer", "TorchTrainer", "Model")
_ITERATORS = ("TFEpochIterator", "JAXEpochIterator", "TorchEpochIterator")


def install(module: ModuleType, watch: Watch) -> None:
    trainer: Any = next(getattr(module, name) for name in _TRAINERS if hasattr(module, name))
    for name in _EVALUATES:
        setattr(trainer, name, _evaluating(getattr(trainer, name), name, watch))
    trainer.train_on_batch = _training(trainer.train_on_batch, watch)
    for name in (name for name in _ITERATORS if hasattr(module, name)):
        _tap_preparation(getattr(module, name), watch)
    if hasattr(module, "JAXEpochIterator"):
        _tap_python_iterator(module.JAXEpochIterator, watch)
    if hasattr(module, "JAXTrainer"):
        watch.ends_late = True
    if hasattr(module, "TorchTrainer"):
        watch.sees_phases = False


def _evaluating(original: Any, name: str, watch: Watch) -> Any:
    @functools.wraps(original)
    def evaluate(*args: Any, **kwargs: Any) -> Any:
        with watch.apart(Kind.EVALUATION, name):
            return original(*args, **kwargs)

    return evaluate


def _tap_preparation(epoch_iterator: Any, watch: Watch) -> None:
    """An iterator that is made in the middle of a fit is that of the validation data."""
    original = epoch_iterator.__init__

    @functools.wraps(original)
    def init(*args: Any, **kwargs: Any) -> None:
        if watch.is_fitting and not watch.is_apart:
            with watch.apart(Kind.EVALUATION, "validation_data"):
                original(*args, **kwargs)
        else:
            original(*args, **kwargs)

    epoch_iterator.__init__ = init


def _training(original: Any, watch: Watch) -> Any:
    """A step a call, or a step a round where several models take turns."""
    counter = StepCounter()
    models: dict[int, ref[Any]] = {}

    @functools.wraps(original)
    def train_on_batch(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not watch.feeds_by_hand:
            watch.feeds_by_hand = True
            refuse_lonely_ranks(self, watch)
            watch.recorder.guard(facts.record_model, self, watch)
        watch.begin_execution()
        try:
            result = original(self, *args, **kwargs)
        except BaseException:
            watch.abandon_execution()
            raise
        models.setdefault(id(self), ref(self))
        ends_step = counter.stepped(list(models).index(id(self)))
        watch.recorder.guard(functools.partial(watch.end_execution, 1, ends_step=ends_step))
        if counter.is_turn_complete:
            end_rehearsal(watch)
        return result

    return train_on_batch


def _tap_python_iterator(epoch_iterator: Any, watch: Watch) -> None:
    original = epoch_iterator._get_iterator

    @functools.wraps(original)
    def get_iterator(self: Any) -> Any:
        return _TimedIterator(original(self), watch)

    epoch_iterator._get_iterator = get_iterator


class _TimedIterator:
    """Hands on what an iterator hands out, and tells how long that took."""

    def __init__(self, source: Any, watch: Watch) -> None:
        self._source = iter(source)
        self._watch = watch

    def __iter__(self) -> "_TimedIterator":
        return self

    def __next__(self) -> Any:
        start_ns = now_ns()
        self._watch.is_asking = True
        try:
            batch = next(self._source)
        finally:
            self._watch.is_asking = False
        self._watch.pulled(start_ns, num_samples(batch))
        return batch


def num_samples(batch: Any) -> int:
    """The first dimension of the first array, however deep it lies."""
    try:
        for _ in range(4):
            if hasattr(batch, "shape"):
                return int(batch.shape[0])
            batch = next(iter(batch.values() if isinstance(batch, dict) else batch))
    except Exception:  # a batch may be anything
        return NOT_GIVEN
    return NOT_GIVEN
