"""`socket` for what loads before a training script's first line: the C class, and the little that Python adds to it.

The standard module makes enums of its constants and loads `selectors`, `collections` and `functools`: 10 ms, nearly as
long as Python's own start. Constants and functions are those of `_socket`, as plain ints. Descriptors are not inherited
and EINTR is retried here as well; both are done in C.

Not for files made of sockets, nor for anything that runs once the script has begun: `socket` does that.
"""

from __future__ import annotations

import _socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any


class Socket(_socket.socket):
    def accept(self) -> tuple[Socket, Any]:
        """Whoever is accepted blocks, whatever the listener does."""
        fd, address = self._accept()  # type: ignore[attr-defined]
        return Socket(self.family, self.type, self.proto, fileno=fd), address

    def __enter__(self) -> Socket:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()
