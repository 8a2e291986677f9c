"""`selectors` for what loads before a training script's first line: descriptors to be read, and what to call then.

    selector.register(fd, read)
    for act in selector.select(0.1):
        act()

The standard module loads `collections` for named tuples, and `math`: 4 ms with what those load. Not for waiting until
something can be written; `select.poll` is there for the few who do.
"""

from __future__ import annotations

import select

from topout.schema.ignoring import ignoring

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_READABLE = select.EPOLLIN
"""With which an end and an error are told in any case."""


class Selector:
    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._acts: dict[int, Callable[[], object]] = {}

    def __contains__(self, fd: int) -> bool:
        return fd in self._acts

    def register(self, fd: int, act: Callable[[], object]) -> None:
        """Raises OSError where the kernel cannot wait for it, KeyError where it is here already."""
        if fd in self._acts:
            raise KeyError(f"descriptor {fd} is registered already")
        self._epoll.register(fd, _READABLE)
        self._acts[fd] = act

    def unregister(self, fd: int) -> None:
        """Raises KeyError where it is not here."""
        del self._acts[fd]
        # closed before, the kernel has forgotten it
        with ignoring(OSError):
            self._epoll.unregister(fd)

    def drop(self, fds: Iterable[int]) -> None:
        """Those of them that are here."""
        for fd in self._acts.keys() & set(fds):
            self.unregister(fd)

    def select(self, seconds: float) -> list[Callable[[], object]]:
        """What to call, for all that can be read; empty after so many seconds."""
        ready = self._epoll.poll(max(seconds, 0.0), max(len(self._acts), 1))
        return [self._acts[fd] for fd, _ in ready if fd in self._acts]

    def close(self) -> None:
        self._epoll.close()
        self._acts.clear()
