"""Writes in a thread of its own, in order: files and terminals may keep whoever writes to them waiting for minutes.

A terminal that somebody stopped (Ctrl-S, a pager), or a file system whose server is away: a launcher that waited for it
would neither hear nor say anything meanwhile, and the others of its job would take it for gone. No thread is there
before `start` and after `finish`, and whoever asks then writes at once: ranks are forked in between.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable
    from threading import Condition, Thread

_MOST_BYTES = 64 << 20
"""That may wait to be written. Whoever has more waits as well, and with the launcher a rank that prints it."""
_BEAT_S = 1.0


class Scribe:
    """Jobs must not raise."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Callable[[], None], int]]
        """From the first start on."""
        self._num_bytes = 0
        """Of those that wait, and of the one that is written."""
        self._thread: Thread | None = None
        self._is_ending = False
        self._changed: Condition

    def start(self) -> None:
        # late: a launcher that starts ranks need not wait for it
        import threading
        from collections import deque

        self._changed = threading.Condition()
        if not hasattr(self, "_waiting"):
            self._waiting = deque()
        self._is_ending = False
        self._thread = threading.Thread(target=self._write_all, name="topout-scribe", daemon=True)
        self._thread.start()

    def do(self, job: Callable[[], None], num_bytes: int) -> None:
        """Soon; `num_bytes` is what is kept of it until then."""
        if self._thread is None:
            job()
            return
        with self._changed:
            self._changed.wait_for(lambda: self._num_bytes < _MOST_BYTES)
            self._waiting.append((job, num_bytes))
            self._num_bytes += num_bytes
            self._changed.notify_all()

    def finish(self, goes_on: Callable[[], bool] = lambda: True) -> bool:
        """Whether all is written. Asks once a second until then; where that does not go on, the rest is left alone."""
        if self._thread is None:
            return True
        with self._changed:
            self._is_ending = True
            self._changed.notify_all()
        self._thread.join(_BEAT_S)
        while self._thread.is_alive() and goes_on():
            self._thread.join(_BEAT_S)
        is_done, self._thread = not self._thread.is_alive(), None
        return is_done

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_ending)
                if not self._waiting:
                    return
                job, num_bytes = self._waiting.popleft()
            job()
            with self._changed:
                self._num_bytes -= num_bytes
                self._changed.notify_all()
