"""A command that runs beside this launcher until it ends or is ended: what it says is kept in memory.

As `subprocess` starts one, without loading that, which takes 10 ms in which no host has been asked to start anything
yet. In a session of its own, for Ctrl-C is for the launcher to pass on; without this process's open files. Not for
anything that is to be read while it runs.
"""

from __future__ import annotations

import os
import select

from topout.schema.ignoring import ignoring
from topout.schema.light_signal import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LOOK_S = 0.05


class StartedCommand:
    """Raises OSError where it cannot be started, or is not on this process's own PATH. Close it."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        # it says little, and `tempfile` takes 5 ms to load
        self._said_fd = os.memfd_create("starter")
        try:
            self.pid = _spawn(words, environment, self._said_fd)
        except BaseException:
            os.close(self._said_fd)
            raise
        self._returncode: int | None = None

    def poll(self) -> int | None:
        """None while it runs; negative for the signal that ended it."""
        if self._returncode is None:
            self._reap(os.WNOHANG)
        return self._returncode

    def said(self) -> bytes:
        """All of it so far, stdout and stderr."""
        return os.pread(self._said_fd, os.fstat(self._said_fd).st_size, 0)

    def await_end(self, seconds: float) -> None:
        """No longer than that."""
        if self.poll() is not None:
            return
        # kernels before 5.3 have none
        with ignoring(AttributeError, OSError):
            pidfd = os.pidfd_open(self.pid)
            try:
                # not `select.select`, which knows no descriptor beyond 1,023
                poll = select.poll()
                poll.register(pidfd, select.POLLIN)
                poll.poll(seconds * 1000)
            finally:
                os.close(pidfd)
            return
        self._look_until(seconds)

    def terminate(self) -> None:
        """Asks it to end; it may have something to end elsewhere first."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """With all that it started in its session's first group; waits for its end."""
        self._signal(signal.SIGKILL)
        if self._returncode is None:
            self._reap(0)

    def close(self) -> None:
        if self._said_fd >= 0:
            os.close(self._said_fd)
            self._said_fd = -1

    def _signal(self, number: int) -> None:
        if self.poll() is None:
            with ignoring(ProcessLookupError):
                os.killpg(self.pid, number)

    def _look_until(self, seconds: float) -> None:
        import time

        end_at = time.monotonic() + seconds
        while self.poll() is None and time.monotonic() < end_at:
            time.sleep(_LOOK_S)

    def _reap(self, options: int) -> None:
        try:
            pid, status = os.waitpid(self.pid, options)
        except ChildProcessError:
            # somebody else has
            self._returncode = 0
            return
        if pid:
            self._returncode = os.waitstatus_to_exitcode(status)


def _spawn(words: Sequence[str], environment: Mapping[str, str], said_fd: int) -> int:
    actions: list[tuple[int, int] | tuple[int, int, int] | tuple[int, int, str, int, int]] = [
        # first, for where 0 was closed it is that of what is said
        (os.POSIX_SPAWN_DUP2, said_fd, 1),
        (os.POSIX_SPAWN_DUP2, said_fd, 2),
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        *((os.POSIX_SPAWN_CLOSE, fd) for fd in _inherited()),
    ]
    try:
        return os.posix_spawnp(
            words[0],
            list(words),
            environment,
            file_actions=actions,
            setsid=True,
            # Python ignores these two, which a command does not expect
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
        )
    except NotImplementedError:
        # no sessions for a Python that was built for a C library older than 2.26, as conda-forge's is
        return _by_subprocess(words, environment, said_fd)


def _by_subprocess(words: Sequence[str], environment: Mapping[str, str], said_fd: int) -> int:
    import subprocess

    started = subprocess.Popen(
        words, env=environment, stdin=subprocess.DEVNULL, stdout=said_fd, stderr=said_fd, start_new_session=True
    )
    # its end is looked for by its number
    started.returncode = 0
    return started.pid


def _inherited() -> list[int]:
    """What this process was given beyond the first three, and what it does not close by itself for a command."""
    found = []
    # the C library refuses to close what a limit that came later (`ulimit -n`) leaves no room for
    limit = os.sysconf("SC_OPEN_MAX")
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        # one of them was that of the listing
        with ignoring(OSError):
            if int(name) > 2 and not 0 <= limit <= int(name) and os.get_inheritable(int(name)):
                found.append(int(name))
    return found
