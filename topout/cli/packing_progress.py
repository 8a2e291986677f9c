"""How far packing is: a bar with rate and time left on a terminal, one line a minute in a log."""

import sys
import threading
import time
from types import TracebackType
from typing import Any, Self

from topout.cli.sizes import bytes_text

_EVERY_S = 60.0
_BAR_EVERY_S = 0.1


class PackingProgress:
    """Told by many threads at once; draws at most ten times a second."""

    def __init__(self, what: str, num_samples: int, num_bytes: int, *, is_quiet: bool = False) -> None:
        self._what = what
        self._total = (num_samples, num_bytes)
        self._done = [0, 0]
        self._lock = threading.Lock()
        self._start = time.monotonic()
        self._is_quiet = is_quiet
        self._next = self._start + _EVERY_S
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty() and not self._is_quiet:
            self._bar, self._task = _rich_bar(self._what, self._total[1])
            self._bar.start()
            self._next = self._start
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._draw()
            self._bar.stop()

    def add(self, num_samples: int, num_bytes: int) -> None:
        with self._lock:
            self._done[0] += num_samples
            self._done[1] += num_bytes
            now = time.monotonic()
            if self._is_quiet or now < self._next:
                return
            self._next = now + (_BAR_EVERY_S if self._bar is not None else _EVERY_S)
            self._draw()

    def _draw(self) -> None:
        if self._bar is not None:
            words = f"{self._done[0]:,} of {self._total[0]:,} samples"
            self._bar.update(self._task, completed=self._done[1], samples=words)
        else:
            print(self._line(), file=sys.stderr, flush=True)

    def _line(self) -> str:
        taken_s = max(time.monotonic() - self._start, 1e-9)
        rate = self._done[1] / taken_s
        left_s = (self._total[1] - self._done[1]) / rate if rate else None
        left = "unknown" if left_s is None else f"{left_s:.0f} s"
        done, total = self._done[0], self._total[0]
        return f"{self._what}  {done:,} of {total:,} samples  {bytes_text(rate)}/s  {left} left"


def _rich_bar(what: str, num_bytes: int) -> tuple[Any, Any]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("{task.fields[samples]}"),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    return bar, bar.add_task(what, total=max(num_bytes, 1), samples="")
