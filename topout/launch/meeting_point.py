"""Where ranks meet (MASTER_ADDR and MASTER_PORT): a port held for rank 0 until it listens there, tried from elsewhere.

A port is bound but not listened on: nobody else gets it, and rank 0 may bind it as well. Before anything starts, every
other host connects and both ends prove the token; a firewall between compute nodes is found here, in seconds.
"""

from __future__ import annotations

import time

from topout.host.light_selector import Selector
from topout.launch.ports import hold_port, reusable
from topout.launch.rendezvous import connect_once
from topout.launch.wire import NotOursError, Wire
from topout.schema.ignoring import ignoring

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_ACCEPT_AGAIN_S = 0.05
_REACH_S = 12.0
"""The last try may begin so late: `head` waits a little longer for the answer."""
_REACH_AGAIN_S = 0.2


def reach(address: str, port: int, token: str) -> str | None:
    """Why this host cannot talk to the meeting point; None when it can.

    When a thousand hosts knock at once, the kernel there drops those it has no room for, and they knock again.
    """
    give_up_at = time.monotonic() + _REACH_S
    while True:
        try:
            connect_once(address, port, token).close()
            return None
        except (OSError, NotOursError) as error:
            # refused is an answer: nobody listens there, and nobody will
            if isinstance(error, ConnectionRefusedError) or time.monotonic() >= give_up_at:
                return getattr(error, "strerror", None) or str(error)
        time.sleep(_REACH_AGAIN_S)


class MeetingPoint:
    """Holds the port, and answers those who try it until `stop_answering`."""

    def __init__(self, address: str, token: str) -> None:
        self._token = token
        self._holder = hold_port(address)
        self.address = address
        self.port = int(self._holder.getsockname()[1])
        self._listener = reusable(address)
        self._listener.bind((address, self.port))
        self._listener.listen(1024)
        self._listener.setblocking(False)
        self._visitors: list[Wire] = []
        self._selector: Selector | None = None

    def register(self, selector: Selector) -> None:
        self._selector = selector
        selector.register(self._listener.fileno(), self._welcome)

    def stop_answering(self) -> None:
        for visitor in self._visitors:
            self._drop(visitor)
        if self._selector is not None:
            self._selector.unregister(self._listener.fileno())
            self._selector = None
        self._listener.close()

    def close(self) -> None:
        with ignoring(OSError):
            self._listener.close()
        self._holder.close()

    def _welcome(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:
            # out of descriptors, say: the connection is still there, and would be offered again without end
            time.sleep(_ACCEPT_AGAIN_S)
            return
        visitor = Wire(connection)
        visitor.challenge()
        self._visitors.append(visitor)
        if self._selector is not None:
            self._selector.register(visitor.fd, self._reader(visitor))

    def _reader(self, visitor: Wire) -> Callable[[], None]:
        fd = visitor.fd

        def read() -> None:
            for message in visitor.receive():
                visitor.accept(message, self._token)
            if not visitor.is_open and self._selector is not None:
                self._selector.unregister(fd)
                visitor.close()

        return read

    def _drop(self, visitor: Wire) -> None:
        if self._selector is not None and visitor.fd >= 0:
            with ignoring(KeyError, ValueError):
                self._selector.unregister(visitor.fd)
        visitor.close()
