"""Watches the ranks of a job from the first to the last: output, messages, ends, and signals to the launcher.

One thread, one `select` over everything that can happen. It decides when a job ends; why it failed is told by
`first_failure`. Not for starting processes; they arrive running.
"""

import os
import selectors
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from topout.launch.first_failure import RankEnd
from topout.launch.log_pipe import LogPipe
from topout.launch.rank_process import RankProcess
from topout.launch.signals import LauncherSignals
from topout.launch.status_pipe import StatusPipe
from topout.launch.stopped import StoppedRanks


class Cause(StrEnum):
    """Why a job ended."""

    ALL_DONE = "all done"
    RANK_FAILED = "rank failed"
    INTERRUPTED = "interrupted"
    SINGLE_DEVICE = "single device"
    RANK_STOPPED = "rank stopped"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How long the launcher waits for what, in seconds."""

    exit_s: float = 5.0
    """From a rank's last line or its traceback to its end."""
    stopped_named_s: float = 10.0
    stopped_s: float = 30.0
    drain_s: float = 1.0
    """For output that a surviving grandchild may still write."""
    kill_s: float = 10.0
    """From the kill until a process counts as ended although the kernel still holds it."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "Limits":
        """The two about stopped ranks can be set, for tests and for people who debug by stopping a rank."""
        return cls(
            stopped_named_s=_seconds(environ.get("TOPOUT_STOPPED_NAMED_S"), cls.stopped_named_s),
            stopped_s=_seconds(environ.get("TOPOUT_STOPPED_LIMIT_S"), cls.stopped_s),
        )


AFTER_A_FAILURE = ((0.0, signal.SIGTERM), (2.0, signal.SIGKILL))
AFTER_CTRL_C = ((0.0, signal.SIGINT), (3.0, signal.SIGTERM), (5.0, signal.SIGKILL))
AFTER_TERMINATE = ((0.0, signal.SIGTERM), (5.0, signal.SIGKILL))
AT_ONCE = ((0.0, signal.SIGKILL),)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a job ended."""

    cause: Cause
    ends: tuple[RankEnd, ...]
    signal: int | None = None
    """The signal to the launcher, when that is the cause."""
    stopped_rank: int | None = None


class _Told:
    """What one rank has told so far."""

    def __init__(self) -> None:
        self.reported_code: int | None = None
        self.failure: str | None = None
        self.failed_at_ns: int | None = None
        self.must_end_at: float | None = None


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
        limits: Limits | None = None,
    ) -> None:
        self._processes = {process.rank.rank: process for process in processes}
        self._logs = logs
        self._signals = signals
        self._say = say
        self._note = note
        self._tick = tick
        self._limits = limits or Limits()
        self._told = {rank: _Told() for rank in self._processes}
        self._stopped = StoppedRanks(
            named_after_s=self._limits.stopped_named_s, ended_after_s=self._limits.stopped_s
        )  # fmt: skip
        self._cause = Cause.ALL_DONE
        self._signal: int | None = None
        self._stopped_rank: int | None = None
        self._orders: list[tuple[float, int]] = []
        self._give_up_at: float | None = None
        self._selector = selectors.DefaultSelector()
        self._statuses = {rank: StatusPipe(process.status_fd) for rank, process in self._processes.items()}

    def run(self) -> Outcome:
        """Returns when every rank has ended."""
        self._register()
        next_look = 0.0
        while self._alive():
            self._wait(self._seconds_to_wait())
            for number in self._signals.taken():
                self._obey(number)
            now = time.monotonic()
            self._enforce(now)
            if now >= next_look:
                next_look = now + min(1.0, self._limits.stopped_named_s)
                self._look_for_stopped(now)
                self._tick()
        self._drain()
        ends = tuple(self._end_of(rank) for rank in self._processes)
        return Outcome(cause=self._cause, ends=ends, signal=self._signal, stopped_rank=self._stopped_rank)

    def _register(self) -> None:
        self._selector.register(self._signals.fd, selectors.EVENT_READ, lambda: None)
        for log in self._logs:
            self._selector.register(log.fd, selectors.EVENT_READ, self._log_reader(log))
        for rank, process in self._processes.items():
            self._selector.register(process.status_fd, selectors.EVENT_READ, self._status_reader(rank))
            if process.pidfd is not None:
                self._selector.register(process.pidfd, selectors.EVENT_READ, self._end_watcher(rank, process.pidfd))

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
        for key, _ in self._selector.select(seconds):
            key.data()
        for rank, process in self._processes.items():
            # without pidfds (old kernels) ends are looked for a few times a second
            if process.pidfd is None and process.is_alive and process.reap():
                self._after_end(rank)

    def _seconds_to_wait(self) -> float:
        longest = 0.1 if any(process.pidfd is None for process in self._alive()) else 1.0
        deadlines = [told.must_end_at for told in self._told.values() if told.must_end_at is not None]
        deadlines += [at for at, _ in self._orders]
        return max(0.0, min([longest, self._limits.stopped_named_s, *(at - time.monotonic() for at in deadlines)]))

    def _hear(self, rank: int) -> None:
        for message in self._statuses[rank].read():
            self._act_on(rank, message)

    def _act_on(self, rank: int, message: dict[str, Any]) -> None:
        told, kind = self._told[rank], message.get("kind")
        if kind == "note":
            self._note(f"rank {rank}: {message.get('text', '')}")
        elif kind == "failure" and told.failure is None:
            told.failure = str(message.get("text", ""))
            at_ns = message.get("at_ns")
            told.failed_at_ns = at_ns if isinstance(at_ns, int) else time.monotonic_ns()
            told.must_end_at = time.monotonic() + self._limits.exit_s
        elif kind == "done":
            code = message.get("code")
            told.reported_code = code if isinstance(code, int) else 0
            # after a traceback the clock already runs
            told.must_end_at = told.must_end_at or time.monotonic() + self._limits.exit_s
        elif kind == "single-device" and len(self._processes) > 1:
            self._end_job(Cause.SINGLE_DEVICE, AFTER_A_FAILURE)

    def _after_end(self, rank: int) -> None:
        self._hear(rank)
        self._told[rank].must_end_at = None
        end = self._end_of(rank)
        if end.signal is not None and end.reported_code is not None and end.signal not in end.signals_sent:
            self._note(f"rank {rank} died by signal {end.signal} after its script had ended with {end.reported_code}")
        if end.code != 0:
            self._end_job(Cause.RANK_FAILED, AFTER_A_FAILURE)

    def _end_job(self, cause: Cause, orders: Sequence[tuple[float, int]]) -> None:
        if self._cause is not Cause.ALL_DONE:
            return
        self._cause = cause
        self._give_orders(orders)

    def _give_orders(self, orders: Sequence[tuple[float, int]]) -> None:
        now = time.monotonic()
        self._orders = [(now + after_s, number) for after_s, number in orders]
        self._give_up_at = now + orders[-1][0] + self._limits.kill_s

    def _obey(self, number: int) -> None:
        if number == signal.SIGTSTP:
            self._pause()
        elif self._cause is Cause.INTERRUPTED:
            # asked twice: no more patience
            self._give_orders(AT_ONCE)
        else:
            self._signal = number
            self._end_job(Cause.INTERRUPTED, AFTER_CTRL_C if number == signal.SIGINT else AFTER_TERMINATE)

    def _pause(self) -> None:
        """Ctrl-Z: ranks sit in sessions of their own, so the terminal reaches only the launcher."""
        for process in self._alive():
            process.pass_on(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        for process in self._alive():
            process.pass_on(signal.SIGCONT)

    def _enforce(self, now: float) -> None:
        while self._orders and self._orders[0][0] <= now:
            _, number = self._orders.pop(0)
            for process in self._alive():
                process.tell(number)
        for rank, told in self._told.items():
            if told.must_end_at is not None and told.must_end_at <= now:
                told.must_end_at = None
                self._note(
                    f"rank {rank} was still there {self._limits.exit_s:g} s after its script's end and was ended"
                )
                self._processes[rank].tell(signal.SIGKILL)
        if self._give_up_at is not None and now >= self._give_up_at:
            for process in self._alive():
                self._say(f"topout: rank {process.rank.rank} (pid {process.pid}) does not end; the kernel holds it.")
                process.give_up()

    def _look_for_stopped(self, now: float) -> None:
        states = {rank: process.state() for rank, process in self._processes.items() if process.is_alive}
        to_name, too_long = self._stopped.look(now, states)
        for rank in to_name:
            process = self._processes[rank]
            self._say(
                f"topout: rank {rank} on {process.rank.host} (pid {process.pid}) is stopped and holds up the others; "
                f"continue it with kill -CONT {process.pid}"
            )
        if too_long is not None and self._cause is Cause.ALL_DONE:
            self._stopped_rank = too_long
            self._end_job(Cause.RANK_STOPPED, AFTER_A_FAILURE)

    def _drain(self) -> None:
        """What ranks wrote last still sits in their pipes; a grandchild that left its group may keep one open."""
        end_at = time.monotonic() + self._limits.drain_s
        open_logs = {log.fd for log in self._logs}
        while time.monotonic() < end_at:
            open_logs &= set(self._selector.get_map())
            if not open_logs:
                break
            self._wait(max(0.0, end_at - time.monotonic()))
            self._signals.taken()
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


def _seconds(text: str | None, otherwise: float) -> float:
    try:
        return max(0.1, float(text)) if text else otherwise
    except ValueError:
        return otherwise
