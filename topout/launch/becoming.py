"""How a launcher's child becomes a rank without loading Python and topout a second time.

The launcher forks; the child is bound, gets its pipes and variables, and then leaves the launcher's code by raising
`BecomeRank` up to the command line's first frame, which drops all that the launcher held and runs the script from
there. So the script ends as in any Python, with its exit handlers and those of C libraries. Loading a second
interpreter would nearly double the time to the script's first line. Not where cleaning up on the way out would harm
the launcher: whoever allows forking has looked at every `finally` between here and there (`job.run_job`).
"""

from __future__ import annotations

import gc
import io
import os
import sys

from topout.schema.light_signal import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class BecomeRank(BaseException):
    """Raised in the child alone; nothing but the command line may catch it."""

    def __init__(self, words: Sequence[str], kept_fds: Sequence[int]) -> None:
        super().__init__()
        self.words = list(words)
        self.kept_fds = frozenset(kept_fds)


def load_ahead() -> None:
    """What runs in a rank before its script: loaded once for all ranks of a host, where possible while it waits."""
    import topout.record.rank  # noqa: F401


def fork_rank(
    words: Sequence[str],
    environment: dict[str, str],
    *,
    out_fd: int,
    err_fd: int,
    kept_fds: Sequence[int],
    keeps_stdin: bool,
    prepare: Callable[[], None],
) -> int:
    """The process number of the new rank; in the child it raises."""
    # here, since not every command starts ranks
    from topout.record.preemption import WARNINGS

    # so that the launcher does not take its own handlers, as the child has them at first, for the script's
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, WARNINGS)
    try:
        pid = os.fork()
        if pid == 0:
            for number in WARNINGS:
                signal.signal(number, signal.SIG_IGN)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    if pid:
        return pid
    try:
        os.setsid()
        prepare()
        if not keeps_stdin:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out_fd, 1)
        os.dup2(err_fd, 2)
        _become(environment)
    except BaseException:
        os._exit(127)
    raise BecomeRank(words, kept_fds)


def _become(environment: dict[str, str]) -> None:
    """Most variables are the launcher's own, and to set each of them again takes a millisecond."""
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    for name, value in environment.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def run_rank(words: Sequence[str], kept_fds: frozenset[int]) -> int:
    """Called where no frame of the launcher is left; returns the script's exit code."""
    # what is left of the launcher in cycles stays where it is: collected later, a socket among it would close a
    # descriptor that by then is the script's
    gc.freeze()
    gc.enable()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        if int(name) > 2 and int(name) not in kept_fds:
            try:
                os.close(int(name))
            except OSError:
                # the listing itself
                continue
    for fd in kept_fds:
        os.set_inheritable(fd, True)
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # type: ignore[misc]  # noqa: SIM115 (as long as the process)
    sys.stdout = sys.__stdout__ = _unbuffered(1, sys.stdout)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _unbuffered(2, sys.stderr)  # type: ignore[misc]
    if not sys.flags.safe_path:
        # the folder of the launcher's own program
        del sys.path[0]
    if "random" in sys.modules:
        # seeded when the launcher loaded it, and thus alike in all ranks
        sys.modules["random"].seed()
    from topout.record.rank import main

    return main(list(words))


def _unbuffered(fd: int, like: object) -> io.TextIOWrapper:
    """As `python -u` makes it."""
    encoding, errors = getattr(like, "encoding", None), getattr(like, "errors", None)
    raw = io.FileIO(fd, "w", closefd=False)
    return io.TextIOWrapper(raw, encoding=encoding, errors=errors, write_through=True)
