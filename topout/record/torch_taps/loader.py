"""Taps the DataLoader: how long each batch was waited for, and `--data-share`, which makes loaders shorter.

Works for map and iterable data sets, with and without workers, because all of them hand out batches in one `__next__`.
"""

import functools
import math
from contextlib import suppress
from threading import get_ident
from types import ModuleType
from typing import Any

from topout.record.clock import now_ns
from topout.record.recorder import OFF_MAIN, Recorder
from topout.record.torch_taps import batch
from topout.record.worker_cores import keep_cores
from topout.schema.event import NOT_GIVEN, Kind

_SEQUENCES = (list, tuple)


def install(module: ModuleType, recorder: Recorder) -> None:
    numbers = _IteratorNumbers()
    keep_cores(_loader_class(module))
    _tap_iter(_loader_class(module), recorder, numbers)
    _tap_next(module._BaseDataLoaderIter, recorder)
    if recorder.set_batch is not None:
        batch.install(_loader_class(module), recorder.set_batch)
    if recorder.settings.data_share is not None:
        _shorten(_loader_class(module), recorder.settings.data_share)


def _loader_class(module: ModuleType) -> Any:
    return getattr(module, "DataLoader", None) or module.StatefulDataLoader


class _IteratorNumbers:
    """Numbers iterators in the order in which they start."""

    last = -1


def _tap_iter(loader_class: Any, recorder: Recorder, numbers: _IteratorNumbers) -> None:
    original = loader_class.__iter__
    started = recorder.code(Kind.LOADER)
    waited = recorder.code(Kind.INPUT)
    share = recorder.settings.data_share

    @functools.wraps(original)
    def iterate(self: Any) -> Any:
        start_ns = now_ns()
        iterator = original(self)
        numbers.last += 1
        try:
            iterator._topout_number = numbers.last
            iterator._topout_left = _batches_left(self, recorder) if share is not None else None
            iterator._topout_facts = {
                "batch_size": self.batch_size,
                "num_workers": self.num_workers,
                "takes_batch": batch.takes_batch(self),
            }
        except AttributeError:
            # a generator, say, that a subclass makes of torch's iterator
            if share is not None:
                recorder.note(
                    "--data-share cannot shorten a loader whose class has an iterator of its own; it was left whole"
                )
        batch_size = self.batch_size if isinstance(self.batch_size, int) else NOT_GIVEN
        recorder.emit((started, start_ns, 0, batch_size, numbers.last))
        # starting workers is waiting for input, too
        recorder.span(waited, start_ns, 0, numbers.last)
        recorder.maybe_flush()
        return iterator

    loader_class.__iter__ = iterate


def _batches_left(loader: Any, recorder: Recorder) -> int | None:
    try:
        return len(loader)  # already shortened, see _shorten
    except TypeError:
        recorder.note(
            "--data-share needs a loader with a length; this one has none, so it was left whole (--steps works)"
        )
        return None


def _tap_next(iterator_class: Any, recorder: Recorder) -> None:
    original = iterator_class.__next__
    waited = recorder.code(Kind.INPUT)
    main_thread = recorder.main_thread
    iterator_class._topout_left = None
    iterator_class._topout_number = NOT_GIVEN
    iterator_class._topout_facts = {}

    # Once a batch, in somebody's hot loop, its code cold in the caches: few calls, and none that is not needed.
    @functools.wraps(original)
    def next_batch(self: Any) -> Any:
        if self._topout_left is not None:
            if self._topout_left <= 0:
                raise StopIteration
            self._topout_left -= 1
        start_ns = now_ns()
        batch = original(self)
        duration_ns = now_ns() - start_ns
        try:
            # of other kinds an index means another thing, or makes an entry
            num_samples = batch[0].size(0) if type(batch) in _SEQUENCES else _num_samples(batch)
        except Exception:
            num_samples = _num_samples(batch)
        if type(num_samples) is not int:
            num_samples = NOT_GIVEN
        code = waited if get_ident() == main_thread else waited + OFF_MAIN
        recorder.emit((code, start_ns, duration_ns, num_samples, self._topout_number))
        recorder.feeding = self
        if not recorder.has_begun:
            recorder.begin_training(start_ns)
        if recorder.mark is not None:
            recorder.mark("input")
        return batch

    iterator_class.__next__ = next_batch


def _num_samples(batch: Any) -> int:
    """Samples in a batch as DataLoaders collate it: the first dimension of the first tensor."""
    with suppress(Exception):
        for _ in range(3):
            shape = getattr(batch, "shape", None)
            if shape is not None:
                return int(shape[0]) if len(shape) else 1
            if isinstance(batch, dict) and batch:
                batch = next(iter(batch.values()))
            elif isinstance(batch, _SEQUENCES) and batch:
                batch = batch[0]
            else:
                break
    return NOT_GIVEN


def _shorten(loader_class: Any, share: float) -> None:
    original = loader_class.__len__

    @functools.wraps(original)
    def shortened_length(self: Any) -> int:
        return max(1, math.ceil(int(original(self)) * share))

    loader_class.__len__ = shortened_length
