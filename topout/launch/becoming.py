"""How a launcher's child becomes a rank without loading Python and topout a second time.

The launcher forks; the child is bound, gets its pipes and variables, and then leaves the launcher's code by raising
`BecomeRank` up to the command line's first frame, which leaves all that the launcher held behind and runs the script
from there. So the script ends as in any Python, with its exit handlers and those of C libraries. Loading a second
interpreter would nearly double the time to the script's first line. Not where cleaning up on the way out would harm
the launcher: whoever allows forking has looked at every `finally` between here and there (`job.run_job`).
"""

from __future__ import annotations

import gc
import io
import os
import sys

from topout.launch import start_code
from topout.schema.light_signal import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_left_behind: list[BecomeRank] = []
"""Also where a script undoes `gc.freeze`: its launcher's frames are not to be collected."""


class BecomeRank(BaseException):
    """Raised in the child alone; nothing but the command line may catch it."""

    def __init__(self, words: Sequence[str], kept_fds: Sequence[int]) -> None:
        super().__init__()
        self.words = list(words)
        self.kept_fds = frozenset(kept_fds)
        # a cycle, which `run_rank` then freezes: to free in each child what the launcher's frames held takes copying
        # every page of it, and a socket freed late would close a descriptor that by then is the script's
        self._itself = self
        _left_behind.append(self)


BEFORE_RANKS = (
    *("launch.rank_env", "launch.rank_process", "launch.local_ranks"),
    *("record.status", "record.recorder", "record.rank"),
)
"""Modules that run on a host before its ranks' scripts: loaded once for all of them."""


class Ahead:
    """Modules that will be needed, loaded by a launcher while it waits: none takes as long as a word from elsewhere."""

    def __init__(self, *names: str) -> None:
        self._left = [*names]

    def load_one(self) -> bool:
        """False when there are no more."""
        if self._left:
            __import__(f"topout.{self._left.pop(0)}")
        return bool(self._left)

    def load_all(self) -> None:
        while self.load_one():
            continue


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

    changes = _changes(environment)
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
        for name, value in changes.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    except BaseException:
        os._exit(127)
    raise BecomeRank(words, kept_fds)


def _changes(environment: dict[str, str]) -> dict[str, str | None]:
    """What the child must set, and with None remove; most variables are the launcher's own.

    Found before the fork: in the child each one that it looks at costs a copied page.
    """
    own = dict(os.environ)
    changes: dict[str, str | None] = dict.fromkeys(own.keys() - environment.keys())
    changes.update({name: value for name, value in environment.items() if own.get(name) != value})
    return changes


def run_rank(words: Sequence[str], kept_fds: frozenset[int]) -> int:
    """Called where no frame of the launcher is left; returns the script's exit code."""
    # with all that is left of the launcher, which is never collected
    gc.freeze()
    gc.enable()
    start_code.forget()
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
