"""Where ranks meet (MASTER_ADDR and MASTER_PORT): a port held for rank 0 until it listens there, tried from elsewhere.

A port is bound but not listened on: nobody else gets it, and rank 0 may bind it as well. Before anything starts, every
other host connects once and both ends prove the token; a firewall between compute nodes is found here, in seconds.
"""

import contextlib
import selectors
import time
from collections.abc import Callable

from topout.launch.ports import hold_port, reusable
from topout.launch.rendezvous import connect_once
from topout.launch.wire import NotOursError, Wire

_ACCEPT_AGAIN_S = 0.05


def reach(address: str, port: int, token: str) -> str | None:
    """Why this host cannot talk to the meeting point; None when it can."""
    try:
        connect_once(address, port, token).close()
    except (OSError, NotOursError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None


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
        self._selector: selectors.BaseSelector | None = None

    def register(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        selector.register(self._listener, selectors.EVENT_READ, self._welcome)

    def stop_answering(self) -> None:
        for visitor in self._visitors:
            self._drop(visitor)
        if self._selector is not None:
            self._selector.unregister(self._listener)
            self._selector = None
        self._listener.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
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
            self._selector.register(visitor.fd, selectors.EVENT_READ, self._reader(visitor))

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
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(visitor.fd)
        visitor.close()
