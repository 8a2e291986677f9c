"""When a rank whose script is over ends: once what the script left to threads, children and exit handlers is done.

Python waits for all of these without end, so a script that has forgotten one never ends. They are told apart by what
they do. Whoever writes is waited for; whoever computes, or is held by storage, for a minute; what does neither for
seconds was forgotten. Not by a few lines now and then, as a thread writes that watches something, and not by what
daemon threads compute: Python would not wait for them either.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time

from topout.record.clock import now_ns
from topout.record.process_tree import (
    WORTH_WAITING_BYTES,
    descendants,
    read_cpu,
    read_thread,
    threads_of,
    written_bytes,
)
from topout.schema.light_dataclass import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from topout.record.recorder import Recorder
    from topout.record.status import StatusLine

_COMPUTING_LIMIT_S = 60.0
"""For who computes, and writes nothing: it may be on the way to writing, or turn in a circle."""
_WRITING_LIMIT_S = 1800.0
_BUSY_SHARE = 0.1
"""Of a core; who uses less waits for something."""
_LOOK_S = 0.5
_PAUSE_S = 0.05


@dataclass(frozen=True, kw_only=True)
class Doings:
    """What a process and those below it have done so far."""

    written_bytes: int
    cpu_ns: int
    is_held: bool
    """By the kernel, at this moment: as in a long fsync."""


class Patience:
    """How long a process that should end has done nothing. Times in seconds of any monotonic clock."""

    def __init__(self, now_s: float, *, is_for_computing: bool = True) -> None:
        self._computing_limit_s = _COMPUTING_LIMIT_S if is_for_computing else 0.0
        self._written_bytes = 0
        self.renew(now_s)
        self.leave_out()

    def renew(self, now_s: float) -> None:
        """It trains: that is no leaving."""
        self._begun_s = self._wrote_s = self._moved_s = now_s

    def leave_out(self) -> None:
        """What is done until the next look does not count."""
        self._last: tuple[float, Doings] | None = None

    def look(self, now_s: float, doings: Doings) -> bool:
        """Whether it gets on."""
        before, self._last = self._last, (now_s, doings)
        if before is None:
            self._written_bytes = doings.written_bytes
            return False
        if self.is_spent(now_s):
            return False
        if doings.written_bytes - self._written_bytes >= WORTH_WAITING_BYTES:
            self._written_bytes = doings.written_bytes
            self._wrote_s = self._moved_s = now_s
            return True
        is_busy = doings.cpu_ns - before[1].cpu_ns > _BUSY_SHARE * (now_s - before[0]) * 1e9
        if (is_busy or doings.is_held) and now_s - self._wrote_s <= self._computing_limit_s:
            self._moved_s = now_s
            return True
        return False

    def quiet_s(self, now_s: float) -> float:
        return now_s - self._moved_s

    def is_spent(self, now_s: float) -> bool:
        return now_s - self._begun_s > _WRITING_LIMIT_S


class Leaving:
    """The end of one rank, from its script's last line on; within `limit_s` where nothing is done any more."""

    def __init__(self, code: int, status: StatusLine, recorder: Recorder | None, limit_s: float) -> None:
        self._code = code
        self._status = status
        self._recorder = recorder
        self._limit_s = limit_s
        # after a failure the other ranks wait for the end of this one
        self._patience = Patience(time.monotonic(), is_for_computing=not status.has_told_failure)
        self._late_s = time.monotonic() + self._limit_s
        self._is_on_its_own = False

    def await_threads(self) -> None:
        """A script may train or save in a thread that outlives its last line."""
        while has_own_threads() and self._patience.quiet_s(time.monotonic()) < self._limit_s / 2:
            num_steps, cpu_s = self._num_steps(), time.process_time()
            look_at_s = time.monotonic() + _LOOK_S
            while has_own_threads() and time.monotonic() < look_at_s:
                time.sleep(_PAUSE_S)
            is_preparing = num_steps == 0 and time.process_time() - cpu_s > _BUSY_SHARE * _LOOK_S
            if self._num_steps() > num_steps or is_preparing:
                self._patience.renew(time.monotonic())
            else:
                self._look()

    def watch(self) -> None:
        """From now on the process is ended once it has been quiet for long enough."""
        threading.Thread(target=self._end_when_quiet, name="topout-leaving", daemon=True).start()

    def hand_over(self) -> None:
        """The recorder is done; from now on all is the script's: its exit handlers, and what it forgot."""
        self._is_on_its_own = True

    def _end_when_quiet(self) -> None:
        at_least_until_s = time.monotonic() + self._limit_s / 2
        self._patience.leave_out()
        while True:
            now_s = time.monotonic()
            left_s = max(self._limit_s - self._patience.quiet_s(now_s), at_least_until_s - now_s)
            if left_s <= 0:
                break
            time.sleep(min(_LOOK_S, left_s))
            if self._is_on_its_own:
                self._look()
        if self._patience.is_spent(time.monotonic()):
            self._note(f"was ended although it still wrote {_WRITING_LIMIT_S / 60:.0f} minutes after its last line")
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                continue
        os._exit(self._code)

    def _look(self) -> None:
        now_s = time.monotonic()
        if not self._patience.look(now_s, self._doings()):
            return
        # a failure's limit, or that of the last line, begins anew
        self._status.send("working")
        if self._recorder is not None:
            self._recorder.page.stir(now_ns())
        if now_s >= self._late_s:
            self._late_s = math.inf
            self._note("still worked in threads, children or exit handlers after its last line, and was waited for")

    def _note(self, text: str) -> None:
        self._status.send("note", text=f"the script {text}")

    def _num_steps(self) -> int:
        """None are seen without a recorder: such a rank works while it computes."""
        return self._recorder.num_steps if self._recorder is not None else 0

    def _doings(self) -> Doings:
        own = os.getpid()
        waited_for = list(filter(_is_own, threading.enumerate()))
        if self._is_on_its_own:
            waited_for.append(threading.main_thread())
        below = [found.own_ns for pid in descendants(own) if (found := read_cpu(pid)) is not None]
        return Doings(
            written_bytes=written_bytes(own),
            cpu_ns=sum(read_thread(own, thread.native_id or 0)[1] for thread in waited_for) + sum(below),
            is_held=any(read_thread(own, thread)[0] == "D" for thread in threads_of(own)),
        )


def has_own_threads() -> bool:
    return any(map(_is_own, threading.enumerate()))


def _is_own(thread: threading.Thread) -> bool:
    return thread is not threading.main_thread() and not thread.daemon
