"""One rank as an operating-system process: started bound, in a session of its own, ended with all its children.

Not a way to run helper programs: what is started here dies with the launcher, even when the launcher is killed.
"""

from __future__ import annotations

import os
import time

from topout.host.c_library import c_function
from topout.host.memory_policy import bind_memory
from topout.launch.becoming import BecomeRank, fork_rank
from topout.schema.ignoring import ignoring
from topout.schema.light_signal import signal
from topout.schema.world import Rank

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from topout.record.process_tree import Writing

_PR_SET_PDEATHSIG = 1


class RankProcess:
    """A running rank and the ends of its pipes that the launcher holds."""

    def __init__(
        self,
        rank: Rank,
        command: Sequence[str],
        environment: Callable[[int], dict[str, str]],
        pass_fds: Sequence[int] = (),
        *,
        forks: bool = False,
    ) -> None:
        """`command` is a program and its words; with `forks`, the words after `python -P -m topout.record.rank`."""
        self.rank = rank
        self.signals_sent: set[int] = set()
        self.told_at_ns: int | None = None
        self._warnings: set[int] = set()
        self._writing: Writing | None = None
        self.ended_at_ns: int | None = None
        self.status_fd, status_write_fd = os.pipe()
        self.out_fd, self.err_fd, out_fd, err_fd = -1, -1, -1, -1
        self._returncode: int | None = None
        """As subprocess counts: negative for a signal."""
        try:
            self.out_fd, out_fd = os.pipe()
            self.err_fd, err_fd = os.pipe()
            start = fork_rank if forks else _exec
            self.pid = start(
                command,
                environment(status_write_fd),
                out_fd=out_fd,
                err_fd=err_fd,
                kept_fds=(status_write_fd, *pass_fds),
                # as mpirun has it: one rank may ask, or a debugger in it
                keeps_stdin=rank.rank == 0 and _is_stdin_ours(),
                prepare=_prepare_child(rank),
            )
        except BecomeRank:
            # these are the rank's own now
            raise
        except BaseException:
            _close(status_write_fd, out_fd, err_fd, self.status_fd, self.out_fd, self.err_fd)
            raise
        _close(status_write_fd, out_fd, err_fd)
        self.pidfd = _open_pidfd(self.pid)
        for fd in (self.status_fd, self.out_fd, self.err_fd):
            os.set_blocking(fd, False)

    @property
    def is_alive(self) -> bool:
        return self.ended_at_ns is None

    @property
    def exit_code(self) -> int | None:
        return self._returncode if self._returncode is not None and self._returncode >= 0 else None

    @property
    def death_signal(self) -> int | None:
        return -self._returncode if self._returncode is not None and self._returncode < 0 else None

    def tell(self, number: int) -> None:
        """Sends a signal to the rank; a kill reaches its children too."""
        if not self.is_alive:
            return
        self.signals_sent.add(number)
        if self.told_at_ns is None:
            self.told_at_ns = time.monotonic_ns()
        if number == signal.SIGKILL:
            self._send_to_all(number)
        else:
            with ignoring(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)

    def pass_on(self, number: int) -> None:
        """Sends what the terminal asked of the whole job (stop, continue) without counting it as an order to end."""
        if self.is_alive:
            self._send_to_all(number)

    def _send_to_all(self, number: int) -> None:
        with ignoring(ProcessLookupError, PermissionError):
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                # a child that was forked this moment leads no group yet
                os.kill(self.pid, number)

    def warn(self, number: int) -> None:
        """For a script that handles the scheduler's warning itself: passed on once it does."""
        self._warnings.add(number)
        self.pass_warnings()

    def pass_warnings(self) -> None:
        """A script that still imports has no handler yet, and the signal would end it."""
        if not self._warnings or not self.is_alive:
            return
        from topout.launch.stop_agreement import catches

        for number in sorted(self._warnings):
            if catches(self.pid, number):
                self._warnings.discard(number)
                with ignoring(ProcessLookupError, PermissionError):
                    os.kill(self.pid, number)

    def reap(self) -> bool:
        """True once the rank has ended; whatever it left behind in its group ends with it."""
        if not self.is_alive:
            return True
        # look without reaping: as long as the rank is a zombie, nobody else can get its process group's number
        if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return False
        with ignoring(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.ended_at_ns = time.monotonic_ns()
        return True

    def give_up(self) -> None:
        """Counts a process as ended that not even a kill ends, because the kernel does not let go of it."""
        self._returncode = -signal.SIGKILL
        self.ended_at_ns = time.monotonic_ns()

    def state(self) -> str | None:
        """The kernel's letter for what the process does: R, S, D, T (stopped), Z; None when it cannot be read."""
        try:
            with open(f"/proc/{self.pid}/stat", "rb") as file:
                return chr(file.read().rpartition(b")")[2].split()[0][0])
        except (OSError, IndexError):
            return None

    def written_bytes(self) -> int:
        """By the rank and its children, so far."""
        if self._writing is None:
            # a launcher that starts ranks need not wait for it
            from topout.record.process_tree import Writing

            self._writing = Writing(self.pid)
        return self._writing.look()

    def close(self) -> None:
        for fd in (self.status_fd, self.out_fd, self.err_fd, self.pidfd):
            if fd is not None:
                with ignoring(OSError):
                    os.close(fd)


def _exec(
    command: Sequence[str],
    environment: dict[str, str],
    *,
    out_fd: int,
    err_fd: int,
    kept_fds: Sequence[int],
    keeps_stdin: bool,
    prepare: Callable[[], None],
) -> int:
    import subprocess

    started = subprocess.Popen(
        command,
        env=environment,
        stdin=None if keeps_stdin else subprocess.DEVNULL,
        stdout=out_fd,
        stderr=err_fd,
        pass_fds=kept_fds,
        start_new_session=True,
        preexec_fn=prepare,  # noqa: PLW1509  (no thread runs yet when ranks start)
    )
    # reaped by process number, as those that were forked are
    started.returncode = 0
    return started.pid


def _is_stdin_ours() -> bool:
    """Not a terminal whose keys are another job's: the kernel would not stop a rank, which has a session of its own."""
    try:
        return not os.isatty(0) or os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def _close(*fds: int) -> None:
    for fd in fds:
        if fd >= 0:
            os.close(fd)


def _open_pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _prepare_child(rank: Rank) -> Callable[[], None]:
    control = c_function("prctl")
    launcher = os.getpid()

    def prepare() -> None:
        if control is not None:
            control(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != launcher:
                # it has died before that
                os.kill(os.getpid(), signal.SIGKILL)
        if rank.cores:
            # before Python starts, so that every thread and loader worker is born bound
            with ignoring(OSError):
                os.sched_setaffinity(0, rank.cores)
        bind_memory(rank.numa)

    return prepare
