"""A thread in the rank that looks once a second at what the rank is doing, and writes it on the status page.

It answers when the launcher asks for stacks, since a debugger is rarely there when a job hangs. Not a profiler: one
look a second tells where a rank stands still, not where its time goes. When some C code keeps Python's lock it cannot
look; the page then grows old, which says just that.
"""

from __future__ import annotations

import os
import time
from _thread import _local, allocate_lock, get_ident, start_new_thread

from topout.record.clock import now_ns
from topout.record.status_page import StatusPage
from topout.record.whereabouts import Place, place_of, stacks, thread_names
from topout.schema.light_dataclass import replace
from topout.schema.light_signal import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Protocol

    from topout.record.page_snapshot import Call
    from topout.record.recorder import Recorder

    class GroupProgress(Protocol):
        """What a rank's communication library tells of its process groups."""

        def is_initialized(self) -> bool: ...

        def positions(self) -> list[tuple[str, int, int]]: ...

        def pending(self) -> list[Call]: ...


INTERVAL_S = 1.0
_FIRST_LOOK_S = 0.1
_DESCRIBED_AFTER_NS = 3_000_000_000
"""A collective that lasts so long is looked up in the flight recorder, which takes up to half a second."""
_USUAL_STEPS = 3.0
"""And so many usual steps: where steps are long, collectives may be."""
_MOST_DUMPS = 16
"""Of each rank, the last ones: a job may be held up every epoch."""
_JOIN_S = 0.5


def stacks_path(run: str | Path, rank: int) -> Path:
    from pathlib import Path

    return Path(run) / "hang" / f"rank-{rank:05d}.txt"


class Lookout:
    """Looks until stopped; whatever fails is noted once by the recorder and left out."""

    def __init__(self, recorder: Recorder, page: StatusPage) -> None:
        self._recorder = recorder
        self._page = page
        self._going_on = allocate_lock()
        """Taken until the looking is to end."""
        self._running = allocate_lock()
        """Taken by the thread, which is none of `threading`'s: a script that does without need not wait for that."""
        self._is_stopped = False
        self._looking = allocate_lock()
        self._groups: dict[str, tuple[int, int, int]] = {}
        """By name: reached, completed, changed ns."""
        self._looked_up: dict[tuple[str, int, int], int] = {}
        """By name, reached and completed: how many are over by the flight recorder's entries."""
        self._dumps: list[str] = []
        self._num_values = -1
        self._described: tuple[str, int] | None = None
        self._place = Place()
        self._place_since_ns = now_ns()
        self._fork = _local()
        self._thread: int | None = None

    def start(self) -> None:
        # a fork happens between two looks, so that a child never inherits a lock that this thread held
        os.register_at_fork(
            before=self._looking_ends, after_in_parent=self._looking_goes_on, after_in_child=self._leave_child
        )
        self._going_on.acquire()
        self._running.acquire()
        self._thread = start_new_thread(self._run, ())

    def stop(self) -> None:
        """The script is over. Joined, because a thread that still runs torch's code at Python's end may abort it."""
        if self._thread is not None and not self._is_stopped:
            self._is_stopped = True
            self._going_on.release()
            if self._thread != get_ident():
                self._running.acquire(timeout=_JOIN_S)
        self._page.put_place("ended", self._place.line, "", now_ns())

    def _looking_ends(self) -> None:
        self._fork.holds_lock = self._looking.acquire(timeout=1.0)

    def _looking_goes_on(self) -> None:
        if self._fork.holds_lock:
            self._looking.release()

    def _leave_child(self) -> None:
        """Threads stay with the parent."""
        self._thread = None
        self._looking_goes_on()

    def _run(self) -> None:
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # signals are the script's
            # later than the script's first line, which it would only hold up
            is_over = self._going_on.acquire(timeout=_FIRST_LOOK_S)
            while not is_over:
                with self._looking:
                    for look in (self._look_at_place, self._look_at_groups, self._look_at_rows, self._answer):
                        self._recorder.guard(look)
                    self._recorder.guard(self._recorder.flush_late)
                    self._page.beat(now_ns())
                is_over = self._going_on.acquire(timeout=INTERVAL_S)
        finally:
            self._running.release()

    def _look_at_place(self) -> None:
        place = place_of(self._recorder.main_thread)
        if not place.phase and self._recorder.is_evaluating:
            place = replace(place, phase="evaluation")
        if (place.phase, place.line) != (self._place.phase, self._place.line):
            self._place_since_ns = now_ns()
        self._place = place
        self._page.put_place(place.phase, place.line, place.inner, self._place_since_ns)

    def _look_at_rows(self) -> None:
        """Rows are signs of life: batches of an evaluation, backwards of a step that accumulates."""
        num_values = self._recorder.num_values
        if num_values != self._num_values:
            self._page.stir(now_ns())
        self._num_values = num_values

    def _look_at_groups(self) -> None:
        if self._recorder.groups is None:
            return
        at_ns = now_ns()
        rows: dict[str, tuple[int, int, int]] = {}
        for name, reached, completed in self._recorder.groups.positions():
            before = self._groups.get(name)
            is_same = before is not None and before[:2] == (reached, completed)
            rows[name] = before if is_same and before else (reached, completed, at_ns)
        if rows != self._groups:
            self._page.stir(at_ns)
        self._groups = rows
        self._put_groups()
        self._describe_pending(at_ns)

    def _put_groups(self) -> None:
        groups = self._recorder.groups
        rows = [(name, reached, self._num_over(name), at_ns) for name, (reached, _, at_ns) in self._groups.items()]
        self._page.put_groups(rows, has_process_group=groups is not None and groups.is_initialized())

    def _describe_pending(self, at_ns: int) -> None:
        long_ns = max(_DESCRIBED_AFTER_NS, round(_USUAL_STEPS * self._usual_step_ns()))
        late = [
            (changed_ns, name, completed)
            for name, (reached, completed, changed_ns) in self._groups.items()
            if reached > self._num_over(name) and at_ns - changed_ns >= long_ns
        ]
        if not late:
            if self._described is not None:
                self._page.clear_pending()
            self._described = None
            return
        _, name, completed = min(late)
        if (name, completed) != self._described:
            self._described = (name, completed)
            pending = self._pending()
            if pending:
                self._put_pending(max(pending, key=lambda call: call.age_s))
            self._looked_up = {
                (name, reached, completed): _num_over(name, reached, completed, pending)
                for name, (reached, completed, _) in self._groups.items()
            }
            self._put_groups()

    def _num_over(self, name: str) -> int:
        reached, completed, _ = self._groups[name]
        return self._looked_up.get((name, reached, completed), completed)

    def _usual_step_ns(self) -> float:
        page = self._page.read()
        return (page.usual_step_s or 0.0) * 1e9 if page is not None else 0.0

    def _pending(self) -> list[Call]:
        return self._recorder.groups.pending() if self._recorder.groups is not None else []

    def _put_pending(self, call: Call) -> None:
        self._page.put_pending(
            call.operation,
            call.group,
            call.sequence if call.sequence is not None else -1,
            call.num_bytes if call.num_bytes is not None else -1,
            now_ns() - round(call.age_s * 1e9),
        )

    def _answer(self) -> None:
        asked = self._page.num_asked
        run = self._recorder.settings.run
        if asked == self._page.num_answered or run is None:
            return
        path = stacks_path(run, self._recorder.settings.rank)
        path.parent.mkdir(exist_ok=True)
        dumps = [*self._dumps, self._words(asked)][-_MOST_DUMPS:]
        with open(path, "w") as file:
            file.writelines(dumps)
        self._dumps = dumps
        self._page.answer(asked)

    def _words(self, number: int) -> str:
        settings, page = self._recorder.settings, self._page.read()
        at = time.strftime("%Y-%m-%d %H:%M:%S")
        lines = [f"rank {settings.rank}, pid {os.getpid()}, {at}, look {number}"]
        if page is not None:
            since = f", the last ended {page.step_age_s:.1f} s ago" if page.step_age_s is not None else ""
            lines.append(f"{page.num_steps} steps{since}; phase: {page.phase or 'none known'}")
        for name, (reached, _, _) in self._groups.items():
            lines.append(f"group {name}: {reached} collectives begun, {self._num_over(name)} over")
        for call in self._pending():
            size = f", {call.num_bytes} bytes" if call.num_bytes is not None else ""
            lines.append(f"not over: {call.operation} #{call.sequence}{size}, group {call.group}, {call.age_s:.1f} s")
        names, own = {self._recorder.main_thread: "MainThread", **thread_names()}, get_ident()
        for thread, stack in stacks().items():
            if thread == own:
                continue
            lines.append(f"thread {names.get(thread, thread)}, outermost call first")
            lines += [f"  {line}" for line in reversed(stack)]
        return "\n".join(lines) + "\n\n"


def _num_over(name: str, reached: int, completed: int, pending: list[Call]) -> int:
    """Of one group. `completed` ended last, which need not be the highest: DDP's buckets end in any order."""
    numbers = [call.sequence for call in pending if call.group == name]
    if None in numbers:  # a send or a receive may be counted, too
        return completed
    return max(completed, min([reached, *(number - 1 for number in numbers if number is not None)]))
