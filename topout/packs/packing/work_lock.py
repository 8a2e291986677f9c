"""One process at a time makes something at a place: a lock on a file there, which the kernel gives up with the process.

Some file systems have no locks (Lustre mounted without `flock`, NFS without its lock service, some of FUSE): that is
said once, and the work goes on. Nobody waits here: whoever comes second is told.
"""

import errno
import fcntl
import os
import sys
from pathlib import Path

from topout.schema.errors import ExitCode, TopoutError

_HELD = frozenset({errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES})
_NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK})
_ATTEMPTS = 10
"""After which a file system is believed to number its files anew each time they are looked at."""
_told: set[str] = set()


def hold_lock(path: Path, destination: Path, work: str, do: str, *, is_needed: bool = False) -> int:
    """An open file that holds the lock until it is closed; `work` is packed or unpacked, `do` for who comes second.

    `is_needed`: an error where the file system has no locks.
    """
    for attempts_left in reversed(range(_ATTEMPTS)):
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _take(lock, destination, work, do, is_needed)
            if _is_at(path, lock) or not attempts_left:
                break
        except BaseException:
            os.close(lock)
            raise
        # whoever held it has removed it meanwhile
        os.close(lock)
    return lock


def _take(lock: int, destination: Path, work: str, do: str, is_needed: bool) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NO_LOCKS and not is_needed:
            _tell(destination, work)
            return
        if error.errno in _HELD:
            raise TopoutError(
                f"{destination} is being {work} already.",
                why="another process holds its lock",
                do=do,
                exit_code=ExitCode.ENVIRONMENT,
            ) from error
        raise TopoutError(
            f"{destination} cannot be locked.",
            why=error.strerror or str(error),
            do=f"look at the file system and how it is mounted: findmnt -T {destination.parent}",
            exit_code=ExitCode.ENVIRONMENT,
        ) from error


def _tell(destination: Path, work: str) -> None:
    if work not in _told:
        _told.add(work)
        sys.stderr.write(
            f"topout: {destination} lies on a file system without locks; see to it that nobody else has it {work}.\n"
        )


def _is_at(path: Path, lock: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(lock))
    except FileNotFoundError:
        return False
