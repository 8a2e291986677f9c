"""Whether another living training saves into a folder: a lock on a file there, given up by the kernel with the process.

Some file systems have no locks (Lustre mounted without `flock`, NFS without its lock service, some of FUSE): whoever
asks there is taken to be alone.
"""

import errno
import fcntl
import os
import weakref
from contextlib import suppress
from pathlib import Path

_HELD = frozenset({errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES})
_NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})
_ATTEMPTS = 10
"""After which a file system is believed to number its files anew each time they are looked at."""
_held: "weakref.WeakSet[Lock]" = weakref.WeakSet()


class Lock:
    """Not for waiting: whoever comes second is told, and may ask again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    def take(self) -> bool:
        """False while another has it: a living process, or a second object of this one."""
        for attempts_left in reversed(range(_ATTEMPTS)):
            try:
                # for writing: NFS gives no exclusive lock on a file that is open for reading only
                fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except OSError:
                return True
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(fd)
                if error.errno in _NO_LOCKS:
                    self._remove()
                return error.errno not in _HELD
            if self._is_at_its_path(fd) or not attempts_left:
                self._fd = fd
                _held.add(self)
                break
            # whoever held it has removed it meanwhile
            os.close(fd)
        return True

    def release(self) -> None:
        if self._fd is None:
            return
        self._remove()
        with suppress(OSError):
            # closing alone would leave it with a child that is forked just now
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        self.leave_to_parent()

    def leave_to_parent(self) -> None:
        """Closes it and nothing else: a lock belongs to all that have it from one `open`."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def _remove(self) -> None:
        with suppress(OSError):
            self._path.unlink()

    def _is_at_its_path(self, fd: int) -> bool:
        try:
            return os.path.samestat(self._path.stat(), os.fstat(fd))
        except OSError:
            return False


def _leave_to_parent() -> None:
    # a child must not give it up, nor keep it when the rank is killed
    for lock in list(_held):
        lock.leave_to_parent()


os.register_at_fork(after_in_child=_leave_to_parent)
