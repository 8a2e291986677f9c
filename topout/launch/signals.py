"""Signals to the launcher, turned into something a select loop can wait for.

Not usable outside the main thread, where Python delivers signals; there it stays silent.
"""

from __future__ import annotations

import os

from topout.schema.ignoring import ignoring
from topout.schema.light_signal import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType, TracebackType
    from typing import Any

_WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP, signal.SIGUSR1, signal.SIGUSR2)
_WARNINGS = (signal.SIGUSR1, signal.SIGUSR2)


class EndedByError(KeyboardInterrupt):
    """A signal ended the job before it had ranks."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class LauncherSignals:
    """While entered, signals gather here instead of ending the launcher."""

    def __init__(self) -> None:
        self._arrived: list[int] = []
        self._previous: dict[int, Any] = {}
        self._previous_wakeup_fd = -1
        self.fd, self._write_fd = os.pipe()
        for fd in (self.fd, self._write_fd):
            os.set_blocking(fd, False)

    def __enter__(self) -> LauncherSignals:
        try:
            self._previous_wakeup_fd = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        except ValueError:
            # not the main thread
            return self
        for number in _WATCHED:
            # under nohup the terminal's hang-up is ignored on purpose
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue
            self._previous[number] = signal.signal(number, self._note)
        if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
            # inherited: the kernel would reap ranks, and nobody could tell how they ended
            self._previous[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if self._previous:
            signal.set_wakeup_fd(self._previous_wakeup_fd)
        os.close(self.fd)
        os.close(self._write_fd)

    def taken(self) -> list[int]:
        """Signals that arrived since the last call."""
        with ignoring(BlockingIOError):
            os.read(self.fd, 4096)
        arrived, self._arrived = self._arrived, []
        return arrived

    def end_asked(self, *, may_pause: bool = True) -> int | None:
        """While there are no ranks: the signal that ends the launcher. Warnings are kept for the ranks to come.

        `may_pause`: stops at Ctrl-Z; else that is kept as well, for nobody answers the others meanwhile.
        """
        arrived = self.taken()
        kept = _WARNINGS if may_pause else (*_WARNINGS, signal.SIGTSTP)
        self._arrived = [number for number in arrived if number in kept] + self._arrived
        if may_pause and signal.SIGTSTP in arrived:
            os.kill(os.getpid(), signal.SIGSTOP)
        return next((number for number in arrived if number not in (*_WARNINGS, signal.SIGTSTP)), None)

    def raise_if_asked(self, *, may_pause: bool = True) -> None:
        number = self.end_asked(may_pause=may_pause)
        if number is not None:
            raise EndedByError(number)

    def give_back(self, numbers: Sequence[int]) -> None:
        """For whoever looks next, as if they arrived now."""
        self._arrived[:0] = numbers

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._arrived.append(number)


def ignore_late_warnings() -> None:
    """For a process that only explains its run from now on: a warning must neither end it nor change its exit code."""
    for number in _WARNINGS:
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, signal.SIG_IGN)
