"""Watches the ranks of a job from the first to the last: output, messages, ends, and signals to the launcher.

One thread, one `select` over everything that can happen. It decides when a job ends; why it failed is told by
`first_failure`. Not for starting processes; they arrive running.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from topout.host.light_selector import Selector
from topout.launch.first_failure import RankEnd
from topout.launch.log_pipe import LogPipe
from topout.launch.outcome import AFTER_A_FAILURE, AT_ONCE, Cause, Limits, Orders, Outcome, after_signal
from topout.launch.rank_process import RankProcess
from topout.launch.signals import LauncherSignals
from topout.launch.status_pipe import StatusPipe, Told
from topout.launch.stopped import StoppedRanks
from topout.launch.stopping import WARNINGS, Stopping
from topout.schema.light_dataclass import replace
from topout.schema.light_signal import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from topout.launch.fellows import Fellows


_LOOK_S = 1.0
_FIRST_LOOK_S = 0.2
"""Until then ranks have their host's cores for themselves; on a small one the launcher would be in their way."""
_OVERSLEPT_S = 2.0
"""Who wakes later than that was stopped, and most likely all ranks with it."""
_ONE_REQUEST_S = 1.0
_WRITES_WITHIN_S = 2.0
"""Of the moment at which it must end, a rank that still writes; before, the recorder does."""


class Supervisor:
    """One job's life. `say` talks to the person, `note` keeps a sentence for run.json."""

    def __init__(
        self,
        processes: Sequence[RankProcess],
        logs: Sequence[LogPipe],
        signals: LauncherSignals,
        *,
        say: Callable[[str], None],
        note: Callable[[str], None],
        tick: Callable[[], None] = lambda: None,
        watch: Callable[[float], None] = lambda now: None,
        limits: Limits | None = None,
        fellows: Fellows | None = None,
        stopping: Stopping | None = None,
    ) -> None:
        self._processes = {process.rank.rank: process for process in processes}
        self._logs = logs
        self._signals = signals
        self.say = say
        self.note = note
        self._tick = tick
        self._watch = watch
        self._limits = limits or Limits()
        self._fellows = fellows
        self._stopping = stopping
        self._told = {rank: Told() for rank in self._processes}
        self._stopped = StoppedRanks(ended_after_s=self._limits.stopped_s)
        self._cause = Cause.ALL_DONE
        self._signal: int | None = None
        self._asked: tuple[int, float] | None = None
        """The first signal of its own to end, not a fellow's word, and when."""
        self._is_unwanted = self._is_hurried = False
        self._stopped_rank: int | None = None
        self._is_paused = False
        self._orders: list[tuple[float, int]] = []
        self._paused_at = 0.0
        self._selector = Selector()
        self._statuses = {rank: StatusPipe(process.status_fd) for rank, process in self._processes.items()}

    def run(self) -> Outcome:
        """Returns when every rank has ended."""
        # of a signal that was sent to all, launchers elsewhere may have gone before this one has looked
        for number in self._signals.taken():
            self._obey(number)
        self._register()
        next_look = time.monotonic() + _FIRST_LOOK_S
        while self._alive() or (self._fellows is not None and self._fellows.is_busy):
            self._wait(min(self._seconds_to_wait(), max(0.0, next_look - time.monotonic())))
            for number in self._signals.taken():
                self._obey(number)
            now = time.monotonic()
            self._enforce(now)
            if now >= next_look:
                next_look = now + _LOOK_S
                self._look_for_stopped(now)
                for process in self._alive():
                    process.pass_warnings()
                if not self._is_paused:
                    # a head that is stopped reads nothing, and a connection that fills up breaks
                    self._watch(now)
                self._tick()
                if self._stopping is not None:
                    self._stopping.look(now)
                if self._fellows is not None:
                    self._fellows.tick(now)
        self._drain()
        elsewhere = self._fellows.ends() if self._fellows is not None else ()
        ends = sorted([*map(self._end_of, self._processes), *elsewhere], key=lambda end: end.rank)
        return Outcome(
            cause=self._cause,
            ends=tuple(ends),
            signal=self._signal,
            is_unwanted=self._is_unwanted,
            stopped_rank=self._stopped_rank,
        )

    @property
    def is_ending(self) -> bool:
        """For another reason than that all is done."""
        return self._cause is not Cause.ALL_DONE

    # what fellows ask

    def end_job(self, cause: Cause, orders: Orders, *, number: int | None = None, rank: int | None = None) -> None:
        """The first cause counts; whatever follows from it is no news."""
        self._is_unwanted |= cause is Cause.INTERRUPTED
        self._go_on()
        if self._cause is not Cause.ALL_DONE:
            return
        self._cause, self._signal = cause, number
        self._stopped_rank = rank if cause is Cause.RANK_STOPPED else None
        self._give_orders(orders)
        if self._fellows is not None:
            self._fellows.job_ends(cause, orders, number, rank)

    def hurry(self) -> bool:
        """Asked twice to end: no more patience. Whether that is news."""
        is_news, self._is_hurried = not self._is_hurried, True
        if is_news:
            self._go_on()
            self._give_orders(AT_ONCE)
        return is_news

    def pause(self, is_paused: bool) -> None:
        now = time.monotonic()
        if self._is_paused and not is_paused:
            self._put_off(now - self._paused_at)
        self._is_paused, self._paused_at = is_paused, now
        for process in self._alive():
            process.pass_on(signal.SIGSTOP if is_paused else signal.SIGCONT)

    def warn(self, number: int) -> None:
        """For scripts that handle the scheduler's warning themselves."""
        for process in self._alive():
            process.warn(number)

    def _register(self) -> None:
        self._selector.register(self._signals.fd, lambda: None)
        for log in self._logs:
            self._selector.register(log.fd, self._log_reader(log))
        if self._fellows is not None:
            self._fellows.register(self._selector, self)
        for rank, process in self._processes.items():
            self._selector.register(process.status_fd, self._status_reader(rank))
            if process.pidfd is not None:
                self._selector.register(process.pidfd, self._end_watcher(rank, process.pidfd))

    def _log_reader(self, log: LogPipe) -> Callable[[], None]:
        def read() -> None:
            if not log.read():
                self._selector.unregister(log.fd)

        return read

    def _status_reader(self, rank: int) -> Callable[[], None]:
        def read() -> None:
            self._hear(rank)
            if not self._statuses[rank].is_open:
                self._selector.unregister(self._statuses[rank].fd)

        return read

    def _end_watcher(self, rank: int, pidfd: int) -> Callable[[], None]:
        def reap() -> None:
            if self._processes[rank].reap():
                self._selector.unregister(pidfd)
                self._after_end(rank)

        return reap

    def _alive(self) -> list[RankProcess]:
        return [process for process in self._processes.values() if process.is_alive]

    def _wait(self, seconds: float) -> None:
        began = time.monotonic()
        ready = self._selector.select(seconds)
        overslept_s = time.monotonic() - began - seconds
        if overslept_s > _OVERSLEPT_S and not self._is_paused:
            self._put_off(overslept_s)
        for act in ready:
            act()
        for rank, process in self._processes.items():
            # without pidfds (old kernels) ends are looked for a few times a second
            if process.pidfd is None and process.is_alive and process.reap():
                self._after_end(rank)

    def _seconds_to_wait(self) -> float:
        longest = 0.1 if any(process.pidfd is None for process in self._alive()) else 1.0
        if self._is_paused:
            return longest
        deadlines = [told.must_end_at for told in self._told.values() if told.must_end_at is not None]
        deadlines += [at for at, _ in self._orders]
        return max(0.0, min([longest, *(at - time.monotonic() for at in deadlines)]))

    def _hear(self, rank: int) -> None:
        for message in self._statuses[rank].read():
            self._act_on(rank, message)

    def _act_on(self, rank: int, message: dict[str, Any]) -> None:
        told, kind = self._told[rank], message.get("kind")
        if kind == "note":
            self.note(f"rank {rank}: {message.get('text', '')}")
        elif kind == "failure" and told.failure is None:
            told.failure = str(message.get("text", ""))
            at_ns = message.get("at_ns")
            told.failed_at_ns = at_ns if isinstance(at_ns, int) else time.monotonic_ns()
            told.must_end(self._limits_after_failure())
        elif kind == "done":
            code = message.get("code")
            told.reported_code = code if isinstance(code, int) else 0
            told.must_end(self._limits)
        elif kind == "working":
            told.give_time(self._limits)
        elif kind == "single-device" and (len(self._processes) > 1 or self._fellows is not None):
            is_keras = message.get("framework") == "keras"
            self.end_job(Cause.SINGLE_DEVICE_KERAS if is_keras else Cause.SINGLE_DEVICE, AFTER_A_FAILURE)

    def _after_end(self, rank: int) -> None:
        self._hear(rank)
        self._told[rank].must_end_at = None
        end = self._end_of(rank)
        if end.signal is not None and end.reported_code is not None and end.signal not in end.signals_sent:
            self.note(f"rank {rank}: died by signal {end.signal} after its script had ended with {end.reported_code}")
        if self._fellows is not None:
            self._fellows.rank_ended(end)
        if end.code != 0:
            # of a signal that was sent to all, ranks may die before the launcher has looked
            for number in self._signals.taken():
                self._obey(number)
            self.end_job(Cause.RANK_FAILED, AFTER_A_FAILURE)

    def _give_orders(self, orders: Orders) -> None:
        now = time.monotonic()
        self._orders = [(now + after_s, number) for after_s, number in orders]
        for told in self._told.values():
            told.give_up_at = now + orders[-1][0] + self._limits.kill_s

    def _obey(self, number: int) -> None:
        if number == signal.SIGTSTP:
            self._pause()
        elif number in WARNINGS:
            self.warn(number)
            if self._stopping is not None:
                self._stopping.warned(number)
            if self._fellows is not None:
                self._fellows.warned(number)
        elif self._asked is None:
            # by a fellow it may have been asked before: a scheduler tells all launchers of a job
            self._asked = (number, time.monotonic())
            self._end_asked(number)
        elif not self._is_repeated(number) and self.hurry() and self._fellows is not None:
            self._fellows.hurry()

    def _end_asked(self, number: int) -> None:
        orders = after_signal(number)
        is_ending = self._cause is not Cause.ALL_DONE
        self.end_job(Cause.INTERRUPTED, orders, number=number)
        if is_ending and self._fellows is not None:
            # it ends of something else; that nobody wants it again all must know
            self._fellows.job_ends(Cause.INTERRUPTED, orders, number, None)

    def _is_repeated(self, number: int) -> bool:
        """Whoever presses Ctrl-C twice means it; schedulers, job scripts, shells and the kernel repeat each other."""
        assert self._asked is not None
        first, at = self._asked
        return signal.SIGINT not in (number, first) and time.monotonic() - at < _ONE_REQUEST_S

    def _pause(self) -> None:
        """Ctrl-Z: ranks sit in sessions of their own, so the terminal reaches only the launcher."""
        self.pause(True)
        if self._fellows is not None:
            self._fellows.paused(True)
        os.kill(os.getpid(), signal.SIGSTOP)
        self.pause(False)
        if self._fellows is not None:
            self._fellows.paused(False)

    def _go_on(self) -> None:
        """A job that is to end is paused no more; whoever leads it may be stopped, or gone."""
        if self._is_paused:
            self.pause(False)

    def _put_off(self, seconds: float) -> None:
        """Who was stopped for so long could do nothing, and that counts against nobody."""
        self._orders = [(at + seconds, number) for at, number in self._orders]
        for told in self._told.values():
            told.put_off(seconds)

    def _enforce(self, now: float) -> None:
        if self._is_paused:
            return
        while self._orders and self._orders[0][0] <= now:
            _, number = self._orders.pop(0)
            for process in self._alive():
                process.tell(number)
        for rank, told in self._told.items():
            if told.must_end_at is not None and told.must_end_at - now <= _WRITES_WITHIN_S:
                self._enforce_end(rank, told, now)
            if told.give_up_at is not None and told.give_up_at <= now and self._processes[rank].is_alive:
                self._give_up(rank)

    def _give_up(self, rank: int) -> None:
        process = self._processes[rank]
        self.say(f"topout: rank {rank} (pid {process.pid}) does not end; the kernel holds it.")
        if process.pidfd is not None:
            # it may end after all, which would be news twice
            self._selector.unregister(process.pidfd)
        process.give_up()
        self._after_end(rank)

    def _limits_after_failure(self) -> Limits:
        # late: a launcher that starts ranks need not wait for it
        from topout.record.process_tree import WRITING_AFTER_FAILURE_S

        return replace(self._limits, writing_s=min(self._limits.writing_s, WRITING_AFTER_FAILURE_S))

    def _enforce_end(self, rank: int, told: Told, now: float) -> None:
        """What a script writes after its last line, in exit handlers say, is not to be cut off."""
        from topout.record.process_tree import WORTH_WAITING_BYTES

        process = self._processes[rank]
        if told.written_bytes is None:
            told.written_bytes = process.written_bytes()
        if told.must_end_at is None or told.must_end_at > now:
            return
        before, told.written_bytes = told.written_bytes, process.written_bytes()
        if told.written_bytes - before >= WORTH_WAITING_BYTES and told.give_time(self._limits):
            self.note(f"rank {rank}: still wrote after its script's end, and was waited for")
            return
        told.must_end_at = None
        told.give_up_at = told.give_up_at or now + self._limits.parting_s
        self.note(f"rank {rank}: still there {self._limits.exit_s:g} s after its script's end, and ended")
        process.tell(signal.SIGKILL)

    def _look_for_stopped(self, now: float) -> None:
        # who pauses with the whole job is not the one that holds it up
        watched = {} if self._is_paused else self._processes
        states = {rank: process.state() for rank, process in watched.items() if process.is_alive}
        too_long = self._stopped.look(now, states)
        if too_long is not None and self._cause is Cause.ALL_DONE:
            self.end_job(Cause.RANK_STOPPED, AFTER_A_FAILURE, rank=too_long)

    def _drain(self) -> None:
        """What ranks wrote last still sits in their pipes; a grandchild that left its group may keep one open."""
        end_at = time.monotonic() + self._limits.drain_s
        open_logs = {log.fd for log in self._logs}
        late: list[int] = []
        while time.monotonic() < end_at:
            open_logs = {fd for fd in open_logs if fd in self._selector}
            if not open_logs:
                break
            self._wait(max(0.0, end_at - time.monotonic()))
            late += self._signals.taken()
        self._signals.give_back(late)
        self._selector.close()

    def _end_of(self, rank: int) -> RankEnd:
        process, told = self._processes[rank], self._told[rank]
        return RankEnd(
            rank=rank,
            host=process.rank.host,
            pid=process.pid,
            ended_at_ns=process.ended_at_ns or time.monotonic_ns(),
            exit_code=process.exit_code,
            signal=process.death_signal,
            signals_sent=frozenset(process.signals_sent),
            told_at_ns=process.told_at_ns,
            reported_code=told.reported_code,
            failure=told.failure,
            failed_at_ns=told.failed_at_ns,
        )
