"""Batches made ahead of use by a thread of their own, handed over in order; ends with whoever was asking for them.

The thread holds the channel and nothing of the iterator, so an iterator that is dropped, interrupted or broken out of
ends its thread. What goes wrong there is raised where the batch is asked for.
"""

import _thread
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from topout.feed.pipeline import Cancelled


class Channel:
    """A bounded queue with an end, an error and a way to close it from the reading side.

    The reader may be interrupted at any moment, so it touches nothing but queues written in C: a Ctrl-C inside one of
    threading's conditions can leave its lock taken for good.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._items: SimpleQueue[Any] = SimpleQueue()
        self._taken: SimpleQueue[None] = SimpleQueue()
        """One for every item that the reader took; and one when it closes, so that nobody waits for it."""
        self._num_held = 0
        """Items put and not known to be taken; the producer's own count."""
        self._is_over = False
        self.is_closed = False

    def __len__(self) -> int:
        return self._items.qsize()

    def put(self, item: Any) -> bool:
        """Never waits: room was asked for before the item was begun. False: the reader is gone."""
        self._num_held += 1
        self._items.put(item)
        return not self.is_closed

    def has_room(self, num_underway: int, *, waits: bool) -> bool:
        """Whether another batch may be begun beside those ready and under way. False after waiting: nobody reads."""
        while not self.is_closed:
            if self._num_held + num_underway < self.depth:
                return True
            if not waits and self._taken.empty():
                return False
            self._taken.get()
            self._num_held -= 1
        return False

    def end(self, error: BaseException | None = None) -> None:
        """No more items; with an error, the reader gets it after those that are there."""
        self._items.put(_End(error))

    def get(self) -> Any:
        """The next item; StopIteration at the end."""
        if self._is_over:
            raise StopIteration
        item = self._items.get()
        if not isinstance(item, _End):
            self._taken.put(None)
            return item
        self._is_over = True
        if item.error is not None and not self.is_closed:
            raise item.error
        raise StopIteration

    def close(self) -> None:
        """From any thread; a reader that waits has its end."""
        self.is_closed = self._is_over = True
        with suppress(Empty):
            while True:
                self._items.get_nowait()
        self._items.put(_End(None))
        self._taken.put(None)


class _End:
    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class Producer:
    """A running thread that feeds a channel; none of threading's, whose start and end lose or break on a Ctrl-C."""

    def __init__(self, channel: Channel, batches: Callable[[], Iterator[Any]], finish: Callable[[], None]) -> None:
        self.channel = channel
        self._process = os.getpid()
        self._ended: SimpleQueue[None] = SimpleQueue()
        self._thread = _thread.start_new_thread(_produce, (channel, batches, finish, self._ended))

    def close(self) -> None:
        """Returns when the thread is done: one that decodes while the interpreter ends would crash it. Once only."""
        if os.getpid() != self._process:
            # a forked child has no such thread, and nobody would let go of a queue that was in use at the fork
            return
        self.channel.close()
        if self._thread != _thread.get_ident():
            self._ended.get()


def _produce(
    channel: Channel, batches: Callable[[], Iterator[Any]], finish: Callable[[], None], ended: "SimpleQueue[None]"
) -> None:
    error: BaseException | None = None
    try:
        for batch in batches():
            if not channel.put(batch):
                break
            # a reference kept here would keep a batch's memory from being used again
            del batch
    except Cancelled:
        pass
    except BaseException as caught:
        error = caught
    finally:
        # before the end is told, so that no thread outlives the last batch
        try:
            finish()
        except BaseException as caught:
            error = error or caught
        channel.end(error)
        ended.put(None)
