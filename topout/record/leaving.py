"""When a rank whose script is over ends: once what the script left to threads, children and exit handlers is done.

Python waits for most of these without end, so a script that has forgotten one never ends. They are told apart by what
they do. Whoever writes is waited for; whoever computes, or is held by storage, for a minute; what does neither for
seconds was forgotten. Not by a few lines now and then, as a thread writes that watches something, and not by what
daemon threads compute: Python would not wait for them either. Programs that the script started are waited for in the
same way: Python would leave them running, but the launcher ends them with the rank.
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
    WRITING_AFTER_FAILURE_S,
    Writing,
    are_workers,
    company,
    group_below,
    read_cpu,
    read_thread,
    threads_of,
)
from topout.schema.light_dataclass import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from topout.record.recorder import Recorder
    from topout.record.status import StatusLine

_COMPUTING_LIMIT_S = 60.0
"""For who computes, and writes nothing: it may be on the way to writing, or turn in a circle."""
_WRITING_LIMIT_S = 1800.0
_RECORDER_LIMIT_S = 300.0
"""For what the recorder itself writes at the end: a profile may be some gigabytes."""
_BUSY_SHARE = 0.1
"""Of a core; who uses less waits for something."""
_HARD_SHARE = 0.25
"""A training that nobody counts the steps of uses more, with its workers; what watches something now and then less."""
_AWAKE_SHARE = 0.02
"""Of the rank itself: who waits for workers uses more now and then, and beside an idle one they feed nobody."""
_JUDGED_OVER_S = 2.0
_LOOK_S = 0.5
_PAUSE_S = 0.05
_OVERSLEPT_S = 1.0
"""Who wakes later than that was stopped, or kept from running by what holds Python's lock."""


@dataclass(frozen=True, kw_only=True)
class Doings:
    """What a process and those below it have done so far."""

    written_bytes: int
    cpu_ns: int
    is_held: bool
    """By the kernel, at this moment: as in a long fsync."""


class Effort:
    """Whether CPU time grows by more than a share of a core, over two seconds: a burst now and then is none."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._since: tuple[float, int] | None = None

    def is_made(self, now_s: float, cpu_ns: int) -> bool:
        since_s, since_ns = self._since or (now_s, cpu_ns)
        is_made = cpu_ns - since_ns > self._share * max(now_s - since_s, _JUDGED_OVER_S) * 1e9
        # who ends takes its time along
        if self._since is None or is_made or cpu_ns < since_ns or now_s - since_s >= _JUDGED_OVER_S:
            self._since = (now_s, cpu_ns)
        return is_made


class Training:
    """Whether a rank may train although nobody counts steps: it computes hard, or its workers do and it a little."""

    def __init__(self) -> None:
        self._hard = Effort(_HARD_SHARE)
        self._own = Effort(_AWAKE_SHARE)
        self._awake_s = -math.inf

    def is_likely(self, now_s: float, own_ns: int, workers_ns: int) -> bool:
        if self._own.is_made(now_s, own_ns):
            self._awake_s = now_s
        is_hard = self._hard.is_made(now_s, own_ns + workers_ns)
        return is_hard and now_s - self._awake_s <= _JUDGED_OVER_S


class Patience:
    """How long a process that should end has done nothing. Times in seconds of any monotonic clock."""

    def __init__(self, now_s: float, *, is_for_computing: bool = True, limit_s: float = _WRITING_LIMIT_S) -> None:
        self._computing_limit_s = _COMPUTING_LIMIT_S if is_for_computing else 0.0
        self.limit_s = limit_s
        self.renew(now_s)
        self.leave_out()

    def renew(self, now_s: float) -> None:
        """It trains: that is no leaving."""
        self._begun_s = now_s
        self.stir(now_s)

    def stir(self, now_s: float) -> None:
        """Something gets on that is looked at elsewhere; the limit stays."""
        self._wrote_s = self._moved_s = now_s

    def put_off(self, now_s: float, seconds: float) -> None:
        """It was stopped for so long."""
        self._begun_s += seconds
        # another thread may have been first to see it get on, or have given it time
        self._wrote_s = max(self._wrote_s, min(now_s, self._wrote_s + seconds))
        self._moved_s = max(self._moved_s, min(now_s, self._moved_s + seconds))

    def leave_out(self) -> None:
        """What is done until the next look does not count."""
        self._written_bytes: int | None = None
        self._effort = Effort(_BUSY_SHARE)

    def look(self, now_s: float, doings: Doings) -> bool:
        """Whether it gets on."""
        is_busy = self._effort.is_made(now_s, doings.cpu_ns)
        if self._written_bytes is None:
            self._written_bytes = doings.written_bytes
            return False
        if self.is_spent(now_s):
            return False
        if doings.written_bytes - self._written_bytes >= WORTH_WAITING_BYTES:
            self._written_bytes = doings.written_bytes
            self._wrote_s = self._moved_s = now_s
            return True
        if (is_busy or doings.is_held) and now_s - self._wrote_s <= self._computing_limit_s:
            self._moved_s = now_s
            return True
        return False

    def quiet_s(self, now_s: float) -> float:
        return now_s - self._moved_s

    def is_spent(self, now_s: float) -> bool:
        return now_s - self._begun_s > self.limit_s


class Leaving:
    """The end of one rank, from its script's last line on; within `limit_s` where nothing is done any more."""

    def __init__(self, code: int, status: StatusLine, recorder: Recorder | None, limit_s: float) -> None:
        self._code = code
        self._status = status
        self._recorder = recorder
        self._limit_s = limit_s
        # nobody needs what a script that failed, or was cut by --steps, may still compute
        self._is_good = code == 0 and not status.has_told_failure and not _is_rehearsal_over(recorder)
        self._patience = Patience(
            time.monotonic(),
            is_for_computing=self._is_good,
            limit_s=WRITING_AFTER_FAILURE_S if status.has_told_failure else _WRITING_LIMIT_S,
        )
        self._writing = Writing(os.getpid())
        self._late_s = time.monotonic() + self._limit_s
        self._is_on_its_own = False

    def await_threads(self) -> None:
        """A script may train or save in a thread that outlives its last line."""
        if not has_own_threads():
            return
        self._look()
        training = Training()
        training.is_likely(time.monotonic(), *_spent_ns())
        num_steps = self._num_steps()
        while has_own_threads() and self._patience.quiet_s(time.monotonic()) < self._limit_s / 2:
            look_at_s = time.monotonic() + _LOOK_S
            while has_own_threads() and time.monotonic() < look_at_s:
                time.sleep(_PAUSE_S)
            before, num_steps = num_steps, self._num_steps()
            may_train = training.is_likely(time.monotonic(), *_spent_ns())
            if num_steps > before or (may_train and num_steps == 0 and self._is_good):
                self._patience.renew(time.monotonic())
            else:
                self._look()

    def finish(self, call: Callable[[], None]) -> None:
        """As long as it takes: the launcher's limit begins at `done`. After a failure that has begun already."""
        finishing = threading.Thread(target=call, daemon=True)
        finishing.start()
        finishing.join(self._limit_s / 2 if self._status.has_told_failure else _LOOK_S)
        while finishing.is_alive() and not self._status.has_told_failure:
            now_s = time.monotonic()
            self._patience.renew(now_s)
            self._show_work(now_s)
            finishing.join(_LOOK_S)

    def watch(self) -> None:
        """From now on the process is ended once it has been quiet for long enough."""
        threading.Thread(target=self._end_when_quiet, name="topout-leaving", daemon=True).start()

    def give_time(self, call: Callable[[], None]) -> None:
        """For what the recorder does last, and cannot be looked at: torch may let no other thread run meanwhile."""
        until_s = time.monotonic() + min(_RECORDER_LIMIT_S, self._patience.limit_s)
        is_done = threading.Event()

        def stay() -> None:
            while not is_done.wait(_LOOK_S) and time.monotonic() < until_s:
                self._stay(until_s)
                if self._recorder is not None:
                    self._recorder.page.stir(now_ns())

        self._stay(until_s)
        staying = threading.Thread(target=stay, daemon=True)
        staying.start()
        try:
            call()
        finally:
            is_done.set()
            staying.join()
            self._stay(time.monotonic())

    def hand_over(self) -> None:
        """The recorder is done; from now on all is the script's: its exit handlers, and what it forgot."""
        self._is_on_its_own = True

    def await_children(self) -> None:
        """Programs that were started and not waited for: a copy, say. To be called when all exit handlers are done."""
        own, now_s = os.getpid(), time.monotonic()
        if not self._is_good or not company(own):
            return
        patience, writing = Patience(now_s), Writing(own, company)
        self._stay(now_s)
        while (pids := company(own)) and patience.quiet_s(now_s) < self._limit_s / 2:
            if self._patience.is_spent(now_s):
                # of the rank: the launcher's has begun with it, and is not to come first
                self._note_spent()
                return
            doings = Doings(written_bytes=writing.look(), cpu_ns=_cpu_ns(pids), is_held=False)
            if patience.look(now_s, doings):
                self._stay(now_s)
            # looking more often would be work that is waited for
            time.sleep(_LOOK_S / 2)
            now_s = time.monotonic()

    def _stay(self, now_s: float) -> None:
        """Whoever ends quiet ranks must not come while the interpreter still has to end."""
        self._patience.stir(now_s)
        self._status.send("working")

    def _end_when_quiet(self) -> None:
        at_least_until_s = time.monotonic() + self._limit_s / 2
        self._patience.leave_out()
        while True:
            now_s = time.monotonic()
            left_s = max(self._limit_s - self._patience.quiet_s(now_s), at_least_until_s - now_s)
            if left_s <= 0:
                break
            time.sleep(min(_LOOK_S, left_s))
            overslept_s = time.monotonic() - now_s - _LOOK_S
            if overslept_s > _OVERSLEPT_S:
                # a scheduler that suspends jobs, or Ctrl-Z
                self._patience.put_off(time.monotonic(), overslept_s)
                at_least_until_s += overslept_s
                self._status.send("working")
            if self._is_on_its_own:
                self._look()
        if self._patience.is_spent(time.monotonic()):
            self._note_spent()
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
        self._show_work(now_s)

    def _show_work(self, now_s: float) -> None:
        if self._recorder is not None:
            self._recorder.page.stir(now_ns())
        if now_s >= self._late_s:
            self._late_s = math.inf
            self._note("still worked in threads, children or exit handlers after its last line, and was waited for")

    def _note_spent(self) -> None:
        self._note(f"was ended although it still wrote {self._patience.limit_s:.0f} s after its last line")

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
        return Doings(
            written_bytes=self._writing.look(),
            cpu_ns=sum(read_thread(own, thread.native_id or 0)[1] for thread in waited_for) + _cpu_ns(group_below(own)),
            is_held=any(read_thread(own, thread)[0] == "D" for thread in threads_of(own)),
        )


def has_own_threads() -> bool:
    return any(map(_is_own, threading.enumerate()))


def _is_own(thread: threading.Thread) -> bool:
    return thread is not threading.main_thread() and not thread.daemon


def _is_rehearsal_over(recorder: Recorder | None) -> bool:
    steps = recorder.settings.steps if recorder is not None else None
    return recorder is not None and steps is not None and recorder.num_steps >= steps


def _spent_ns() -> tuple[int, int]:
    """CPU time of the rank's threads but this one, which only looks, and of its workers."""
    own = os.getpid()
    return time.process_time_ns() - time.thread_time_ns(), _cpu_ns(are_workers(own, group_below(own)))


def _cpu_ns(pids: list[int]) -> int:
    return sum(found.own_ns for pid in pids if (found := read_cpu(pid)) is not None)
