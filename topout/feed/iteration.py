"""One pass over the data: an iterator whose batches are made ahead of it.

It may be dropped at any moment, by `break`, by an exception or by Ctrl-C; its threads then end with it.
"""

import os
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from topout.feed.counters import WaitRecord
from topout.feed.delivery import Ready
from topout.feed.prefetch import Channel, Producer
from topout.feed.slabs import SlabPool
from topout.record.clock import now_ns
from topout.schema.errors import TopoutError


class Progress:
    """How far an iteration is; outlives it, since the loader's state is asked for after the last batch too."""

    def __init__(self) -> None:
        self.num_taken = 0
        self.is_over = False


class BatchIterator:
    """Made by `iter(loader)`."""

    def __init__(
        self,
        batches: Callable[[], Iterator[Ready]],
        finish: Callable[[], None],
        *,
        channel: Channel,
        progress: Progress,
        pool: SlabPool,
        waits: WaitRecord,
        after_batch: Callable[[int, int], None],
        passed: Callable[[], None],
        cools: bool,
    ) -> None:
        self._progress = progress
        self._pool = pool
        self._waits = waits
        self._after_batch = after_batch
        self._passed = passed
        self._cools = cools
        self._process = os.getpid()
        self._last_ns = now_ns()
        self._channel = channel
        producer = Producer(channel, batches, finish)
        # also called when the interpreter ends
        self.close = weakref.finalize(self, producer.close)

    def __iter__(self) -> "BatchIterator":
        return self

    def __next__(self) -> Any:
        start_ns = now_ns()
        self._check_process()
        if self._cools:
            self._pool.cool(_queued_copies)
        try:
            ready: Ready | None = self._channel.get()
        except StopIteration:
            ready = None
        except BaseException:
            self.close()
            raise
        if ready is None:
            # not in the handler: a Ctrl-C while the threads end is then shown as an interrupt and nothing else
            self._progress.is_over = not self._channel.is_closed
            self.close()
            raise StopIteration
        if ready.event is not None:
            _join_streams(ready)
        self._progress.num_taken += 1
        self._waits.took(start_ns, ready.num_samples, ready.num_bytes, ready.num_skipped, len(self._channel))
        end_ns = now_ns()
        self._after_batch(end_ns - start_ns, end_ns - self._last_ns)
        self._passed()
        self._last_ns = end_ns
        return ready.value

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise TopoutError(
                "This loader's iterator was begun in another process.",
                why="Its threads do not exist here: a fork takes the calling thread alone.",
                do="call iter(loader) in the process that uses it",
            )


def _queued_copies() -> Callable[[], None]:
    """What to wait for before memory that the script copied from is written again."""
    import torch

    event = torch.cuda.Event()
    event.record()
    return event.synchronize  # type: ignore[no-any-return]


def _join_streams(ready: Ready) -> None:
    """The script's stream goes on after the batch is there; the batch's memory lives until that stream is done."""
    import torch

    stream = torch.cuda.current_stream()
    stream.wait_event(ready.event)
    for tensor in ready.tensors:
        tensor.record_stream(stream)
