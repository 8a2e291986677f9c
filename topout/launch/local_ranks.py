"""The ranks of one host, from start to end: processes, their output, their counters.

The same for a job of one host and for each host of a larger one. Not for deciding who takes part; `roster` does.
"""

from __future__ import annotations

import gc
import os
import select

from topout.host.open_files import allow_open_files
from topout.launch import start_code
from topout.launch.becoming import BEFORE_RANKS, Ahead
from topout.launch.log_pipe import LogPipe
from topout.launch.outcome import Limits, Outcome
from topout.launch.rank_env import rank_environment
from topout.launch.rank_process import RankProcess
from topout.launch.scribe import Scribe
from topout.launch.signals import LauncherSignals
from topout.record.preemption import PAGE_VARIABLE, StopPage
from topout.record.status_page import PAGE_FD, StatusPage
from topout.schema.errors import ExitCode, TopoutError
from topout.schema.light_signal import signal
from topout.schema.run_folder import RunFolder, log_name
from topout.schema.spec import RunSpec
from topout.schema.world import Rank, World

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from topout.launch.fellows import Fellows
    from topout.launch.observation import Observation
    from topout.launch.stopping import Stopping
    from topout.launch.supervise import Supervisor
    from topout.record.sampler import Sampler

_FDS_PER_RANK = 9
QUIET_S = 0.2
"""For which a launcher that has started ranks does nothing else, unless it hears of them."""

Show: TypeAlias = "Callable[[int, bytes], None]"
"""Gives rank 0's output to the person; the first argument is 1 for stdout, 2 for stderr."""


class LocalRanks:
    """Started by the constructor; `supervise` returns when all have ended. Close in any case."""

    _supervisor: Supervisor | None = None

    def __init__(
        self,
        ranks: Sequence[Rank],
        world: World,
        spec: RunSpec,
        command: Sequence[str],
        *,
        folder: RunFolder | None,
        restart: int,
        scheduler: str | None,
        show: Show,
        note: Callable[[str], None],
        on_failure: Callable[[OSError], None],
        signals: LauncherSignals,
        forks: bool = False,
    ) -> None:
        """`forks`: as `RankProcess` has it."""
        self._spec = spec
        self._folder = folder
        self._note = note
        self._forks = forks
        self.processes: list[RankProcess] = []
        self._logs: list[tuple[LogPipe, LogPipe]] = []
        self._sampler: Sampler | None = None
        self.scribe = Scribe()
        """Of the run folder."""
        allow_open_files(_FDS_PER_RANK * len(ranks))
        self.stop_page = StopPage.create(len(ranks))
        self.pages: dict[int, StatusPage] = {}

        def environment(rank: Rank, status_fd: int) -> dict[str, str]:
            return rank_environment(
                rank,
                status_fd=status_fd,
                inherited=os.environ,
                world=world,
                spec=spec,
                run=folder.text if folder else None,
                restart=restart,
                scheduler=scheduler,
            )

        if forks and ranks:
            Ahead(*BEFORE_RANKS).load_all()
        for slot, rank in enumerate(ranks):
            try:
                self.processes.append(self._start(slot, rank, command, environment))
            except OSError as error:
                self.close()
                raise TopoutError(
                    f"Rank {rank.rank} of {world.size} could not be started on {rank.host}.",
                    why=error.strerror or str(error),
                    do="start fewer ranks with -n, or raise the limits on processes and open files (ulimit -a)",
                    exit_code=ExitCode.ENVIRONMENT,
                ) from error
        self._await_first_sign(signals)
        self._logs = [
            (self._pipe(process, 1, show, on_failure), self._pipe(process, 2, show, on_failure))
            for process in self.processes
        ]

    def _start(
        self, slot: int, rank: Rank, command: Sequence[str], environment: Callable[[Rank, int], dict[str, str]]
    ) -> RankProcess:
        pages = {PAGE_VARIABLE: self.stop_page.variable(slot)}
        page_fds = []
        if self._folder is not None and self._spec.record:
            # without a recorder nobody would take it
            self.pages[rank.rank], page_fd = StatusPage.create()
            page_fds.append(page_fd)
            pages[PAGE_FD] = str(page_fd)

        def variables(status_fd: int) -> dict[str, str]:
            return environment(rank, status_fd) | pages

        try:
            fds = (*page_fds, self.stop_page.fd)
            process = RankProcess(rank, command, variables, pass_fds=fds, forks=self._forks)
        except OSError:
            _close(page_fds)
            raise
        _close(page_fds)
        return process

    @property
    def pids(self) -> dict[int, int]:
        return {process.rank.rank: process.pid for process in self.processes}

    @property
    def stderr_tails(self) -> dict[int, str]:
        return {p.rank.rank: err.tail for p, (_, err) in zip(self.processes, self._logs, strict=True)}

    def supervise(
        self,
        signals: LauncherSignals,
        *,
        say: Callable[[str], None],
        tick: Callable[[], None],
        watch: Callable[[float], None],
        stopping: Stopping | None,
        fellows: Fellows | None = None,
        begun: Callable[[], None] = lambda: None,
    ) -> Outcome:
        """`begun` is called once, when the launcher's work no longer stands in the ranks' way."""
        gc.enable()
        start_code.forget()
        self.scribe.start()
        begun()
        from topout.launch.supervise import Supervisor

        def look(now: float) -> None:
            self._start_sampler()
            watch(now)

        supervisor = Supervisor(
            self.processes,
            [log for pair in self._logs for log in pair],
            signals,
            say=say,
            note=self._note,
            tick=tick,
            watch=look,
            limits=Limits.from_environment(os.environ),
            stopping=stopping,
            fellows=fellows,
        )
        self._supervisor = supervisor
        return supervisor.run()

    @property
    def is_ending(self) -> bool:
        """Ranks are being ended."""
        return self._supervisor is not None and self._supervisor.is_ending

    def _await_first_sign(self, signals: LauncherSignals) -> None:
        """Until a rank says something: on a host of few cores, all that the launcher does now is taken from them."""
        poll = select.poll()
        for process in self.processes:
            for fd in (process.status_fd, process.out_fd, process.err_fd, process.pidfd):
                if fd is not None:
                    poll.register(fd, select.POLLIN)
        poll.register(signals.fd, select.POLLIN)
        if self.processes:
            poll.poll(QUIET_S * 1000)

    def observations(self) -> list[Observation]:
        """One look at each rank."""
        from topout.launch.observation import Observation

        return [
            Observation(
                rank=process.rank.rank,
                host=process.rank.host,
                pid=process.pid,
                process_state=process.state() if process.is_alive else None,
                page=self.pages[process.rank.rank].read() if process.rank.rank in self.pages else None,
                has_ended=not process.is_alive,
            )
            for process in self.processes
        ]

    def ask_stacks(self, ranks: Sequence[int]) -> set[int]:
        """Asks those that run here to write their stacks; returns which do."""
        here = {rank for rank in ranks if rank in self.pages}
        for rank in here:
            self.pages[rank].ask()
        return here

    def close(self, goes_on: Callable[[], bool] = lambda: True) -> None:
        """`goes_on` is asked once a second until the last of what ranks printed is in its files."""
        for process in self.processes:
            process.tell(signal.SIGKILL)
        is_written = self.scribe.finish(goes_on)
        if self._sampler is not None:
            self._sampler.stop()
        for process in self.processes:
            process.close()
        for page in self.pages.values():
            page.close()
        self.stop_page.close()
        if not is_written:
            # who still writes must not find another file under the same number
            self._note("the last of what its ranks printed could not be written")
            return
        for log in (log for pair in self._logs for log in pair):
            log.close()

    def _pipe(self, process: RankProcess, fd: int, show: Show, on_failure: Callable[[OSError], None]) -> LogPipe:
        number = process.rank.rank
        path = self._folder.inside(log_name(number, "out" if fd == 1 else "err")) if self._folder else None
        return LogPipe(
            process.out_fd if fd == 1 else process.err_fd,
            path,
            show=(lambda data: show(fd, data)) if number == 0 else None,
            on_failure=on_failure,
            scribe=self.scribe,
        )

    def _start_sampler(self) -> None:
        if self._folder is None or not self._spec.record or self._sampler is not None:
            return
        # at the first look: ranks that start need not wait for what only watches them
        from topout.record.sampler import Sampler, Target

        targets = [
            Target(rank=p.rank.rank, pid=p.pid, gpu=p.rank.gpu, path=self._folder.counters(p.rank.rank))
            for p in self.processes
        ]
        self._sampler = Sampler(targets, note=self._note)
        self._sampler.start()


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
