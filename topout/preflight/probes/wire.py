"""JSON messages over one TCP connection: what probes say to each other while they measure.

Not for measuring bandwidth (`sockets` sends plain bytes) and never a way to run anything: a message is data.
"""

import json
import socket
import time
from typing import Any

_MOST_BYTES = 64 << 20


class Wire:
    """One connection between two probes."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def own_address(self) -> str:
        return str(self._connection.getsockname()[0])

    def send(self, message: Any, deadline_s: float) -> None:
        data = json.dumps(message).encode()
        self._connection.settimeout(_left(deadline_s))
        self._connection.sendall(len(data).to_bytes(4, "big") + data)

    def receive(self, deadline_s: float) -> Any:
        """The next message; OSError when the other end is gone or silent until `deadline_s` (monotonic clock)."""
        size = int.from_bytes(self._exactly(4, deadline_s), "big")
        if size > _MOST_BYTES:
            raise ConnectionError("not a probe of this job")
        try:
            return json.loads(self._exactly(size, deadline_s))
        except ValueError as error:
            raise ConnectionError("not a probe of this job") from error

    def close(self) -> None:
        self._connection.close()

    def _exactly(self, size: int, deadline_s: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            self._connection.settimeout(_left(deadline_s))
            part = self._connection.recv(size - len(data))
            if not part:
                raise ConnectionError("the other end is gone")
            data += part
        return bytes(data)


def _left(deadline_s: float) -> float:
    return max(deadline_s - time.monotonic(), 0.001)
