"""What a rank prints: into its log file, on the terminal for rank 0, and the last of it kept to explain a failure.

The pipe is emptied whatever happens to the file or the terminal: a full disk must not stop a rank inside `print`.
"""

from __future__ import annotations

import os

from topout.launch.scribe import Scribe
from topout.schema.ignoring import ignoring

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

_CHUNK_BYTES = 1 << 16
_TAIL_BYTES = 1 << 14


class LogPipe:
    """One stream of one rank. `on_failure` hears why the file cannot be written, each time, maybe in another thread."""

    def __init__(
        self,
        fd: int,
        path: str | PathLike[str] | None,
        *,
        show: Callable[[bytes], None] | None = None,
        on_failure: Callable[[OSError], None],
        scribe: Scribe | None = None,
    ) -> None:
        """`scribe` writes the file; close when it has finished."""
        self.fd = fd
        self._scribe = scribe or Scribe()
        self._show = show
        self._on_failure = on_failure
        self._tail = bytearray()
        self._file_fd: int | None = None
        if path is not None:
            try:
                self._file_fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            except OSError as error:
                on_failure(error)

    def read(self) -> bool:
        """Takes what is there; False when the other end is closed."""
        try:
            data = os.read(self.fd, _CHUNK_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not data:
            return False
        self._tail += data
        del self._tail[:-_TAIL_BYTES]
        if self._file_fd is not None:
            file_fd = self._file_fd
            self._scribe.do(lambda: self._keep(file_fd, data), len(data))
        if self._show is not None:
            self._show(data)
        return True

    @property
    def tail(self) -> str:
        return self._tail.decode(errors="replace")

    def close(self) -> None:
        if self._file_fd is not None:
            with ignoring(OSError):
                os.close(self._file_fd)
            self._file_fd = None

    def _keep(self, file_fd: int, data: bytes) -> None:
        try:
            write_all(file_fd, data)
        except OSError as error:
            # tried again with the next chunk: space may return
            self._on_failure(error)


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            # a terminal that somebody else made non-blocking
            os.set_blocking(fd, True)
