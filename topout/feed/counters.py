"""What a loader tells the recorder: waits as input of the step, samples, bytes, depth of the queue.

Outside `topout run` only the totals are kept, for `Loader.counters()`.
"""

import threading
from typing import Any

from topout.record.clock import now_ns
from topout.record.recorder import OFF_MAIN, Recorder, current
from topout.schema.event import Kind

_numbers = iter(range(1 << 20, 1 << 62))
"""Of iterators; from where those of stock DataLoaders never come."""


class FeedCounters:
    """Totals of one loader since it was made, or of all loaders of this process."""

    def __init__(self) -> None:
        self.num_samples = 0
        self.num_batches = 0
        self.num_bytes = 0
        self.num_skipped = 0
        self.wait_ns = 0
        self.queue_depth = 0
        self._recorder: Recorder | None = None

    def attach(self) -> Recorder | None:
        """The recorder of this process, which from now on asks for the totals once a second."""
        recorder = current()
        if recorder is not None and recorder is not self._recorder:
            self._recorder = recorder
            recorder.at_pulse.append(self.tell)
            recorder.at_finish.append(self.tell)
        return recorder

    def add(self, num_samples: int, num_bytes: int, num_skipped: int, wait_ns: int, queue_depth: int) -> None:
        """One batch."""
        self.num_samples += num_samples
        self.num_batches += 1
        self.num_bytes += num_bytes
        self.num_skipped += num_skipped
        self.wait_ns += wait_ns
        self.queue_depth = queue_depth

    def tell(self) -> None:
        if self._recorder is not None:
            self._recorder.counter("feed_samples", self.num_samples)
            self._recorder.counter("feed_bytes", self.num_bytes)
            self._recorder.counter("feed_wait_ns", self.wait_ns)
            self._recorder.counter("feed_skipped", self.num_skipped)
            self._recorder.counter("feed_queue_depth", self.queue_depth)

    def totals(self) -> dict[str, int]:
        return {
            "samples": self.num_samples,
            "batches": self.num_batches,
            "bytes": self.num_bytes,
            "skipped": self.num_skipped,
            "wait_ns": self.wait_ns,
            "queue_depth": self.queue_depth,
        }


_of_all = FeedCounters()
"""What is recorded: a loader for training and one for validation would write in turns under one name."""


class WaitRecord:
    """The rows of one iteration, those that the tap of DataLoaders writes."""

    def __init__(self, counters: FeedCounters, batch_size: int, num_threads: int, *, shuffle: bool) -> None:
        self._counters = counters
        self._recorder = _of_all.attach()
        # `batch_asked` gives another batch to those that shuffle
        self._topout_facts: dict[str, Any] = {
            "batch_size": batch_size,
            "num_workers": num_threads,
            "takes_batch": shuffle,
        }
        """Read by the recorder from whatever fed the last batch."""
        if self._recorder is not None:
            self._number = next(_numbers)
            self._waited = self._recorder.code(Kind.INPUT)
            self._recorder.emit((self._recorder.code(Kind.LOADER), now_ns(), 0, batch_size, self._number))

    def started(self, start_ns: int) -> None:
        """Opening an iteration is waiting for input, too."""
        if self._recorder is not None:
            self._recorder.span(self._waited, start_ns, 0, self._number)

    def took(self, start_ns: int, num_samples: int, num_bytes: int, num_skipped: int, queue_depth: int) -> None:
        duration_ns = now_ns() - start_ns
        for counters in (self._counters, _of_all):
            counters.add(num_samples, num_bytes, num_skipped, duration_ns, queue_depth)
        recorder = self._recorder
        if recorder is None:
            return
        is_main = threading.get_ident() == recorder.main_thread
        code = self._waited if is_main else self._waited + OFF_MAIN
        recorder.emit((code, start_ns, duration_ns, num_samples, self._number))
        recorder.feeding = self
        recorder.begin_training(start_ns)
        if recorder.mark is not None:
            recorder.mark("input")
        recorder.maybe_flush()


def batch_asked(batch_size: int, *, shuffle: bool) -> int:
    """`--batch` sets this loader's batch as it does that of stock ones: where it feeds training."""
    recorder = current()
    order = recorder.set_batch if recorder is not None and shuffle else None
    if order is None:
        return batch_size
    order.took("topout.feed.Loader")
    return order.size


def batches_allowed(num_batches: int) -> int:
    """`--data-share` shortens this loader as it does stock ones."""
    recorder = current()
    share = recorder.settings.data_share if recorder is not None else None
    if share is None or not num_batches:
        return num_batches
    return max(1, -int(-num_batches * share // 1))
