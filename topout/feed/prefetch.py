"""Batches made ahead of use by a thread of their own, handed over in order; ends with whoever was asking for them.

The thread holds the channel and nothing of the iterator, so an iterator that is dropped, interrupted or broken out of
ends its thread. What goes wrong there is raised where the batch is asked for.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from topout.feed.pipeline import Cancelled


class Channel:
    """A bounded queue with an end, an error and a way to close it from the reading side."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._items: deque[Any] = deque()
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._is_ended = False
        self.is_closed = False

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: Any) -> bool:
        """Never waits: room was asked for before the item was begun. False: the reader is gone."""
        with self._changed:
            if not self.is_closed:
                self._items.append(item)
                self._changed.notify_all()
            return not self.is_closed

    def has_room(self, num_underway: int, *, waits: bool) -> bool:
        """Whether another batch may be begun beside those ready and under way. False after waiting: nobody reads."""
        with self._changed:
            if waits:
                self._changed.wait_for(lambda: self.is_closed or len(self._items) + num_underway < self.depth)
            return not self.is_closed and len(self._items) + num_underway < self.depth

    def end(self, error: BaseException | None = None) -> None:
        """No more items; with an error, the reader gets it after those that are there."""
        with self._changed:
            self._is_ended, self._error = True, error
            self._changed.notify_all()

    def get(self) -> Any:
        """The next item; StopIteration at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_closed or self._is_ended or self._items)
            if self._items and not self.is_closed:
                item = self._items.popleft()
                self._changed.notify_all()
                return item
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            raise StopIteration

    def close(self) -> None:
        with self._changed:
            self.is_closed = True
            self._items.clear()
            self._changed.notify_all()


class Producer:
    """A running thread that feeds a channel."""

    def __init__(self, channel: Channel, batches: Callable[[], Iterator[Any]], finish: Callable[[], None]) -> None:
        self.channel = channel
        self._thread = threading.Thread(
            target=_produce, args=(channel, batches, finish), name="topout-feed", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Returns when the thread is gone. A daemon thread that decodes while the interpreter ends would crash it."""
        self.channel.close()
        if self._thread is not threading.current_thread():
            self._thread.join()


def _produce(channel: Channel, batches: Callable[[], Iterator[Any]], finish: Callable[[], None]) -> None:
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
