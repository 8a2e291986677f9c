"""Messages between the leading launcher and those on other hosts: JSON lines on a TCP connection that both ends proved.

Nothing that arrives is ever executed or unpickled. Not for data: a few small messages a second. Both ends show that
they know the job's token without sending it (HMAC over the other's nonce); whoever does not is dropped.
"""

from __future__ import annotations

import _socket
import select
import time
from _thread import allocate_lock

from topout import __version__
from topout.launch.status_pipe import parse_message
from topout.launch.token_proof import hmac_sha256, is_same_text, new_nonce
from topout.schema.ignoring import ignoring
from topout.schema.light_json import dumps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LONGEST_LINE_BYTES = 1 << 28
"""Above the start of the largest job: some 20 bytes a rank, of a million ranks."""
_LONGEST_UNPROVED_BYTES = 1 << 12
HANDSHAKE_S = 5.0
_LOST_AFTER_S = 20.0


class NotOursError(Exception):
    """The other end belongs to another job, or to no topout at all."""


class RefusedError(NotOursError):
    """A topout that does not take our token for its own."""


class Wire:
    """One end of a connection. Never blocks once the handshake is over; what cannot be sent yet is kept."""

    def __init__(self, connection: _socket.socket) -> None:
        self._socket = connection
        self.is_open = True
        self.peer_version = ""
        self.clock_offset_ns = 0
        """Added to this host's monotonic clock gives the other's; known to the side that connected."""
        self._partial = bytearray()
        self._unsent = bytearray()
        self._sending = allocate_lock()
        """The sampler's thread has notes while the supervisor reports."""
        self._ready: list[dict[str, Any]] = []
        self._nonce = ""
        self._longest_bytes = _LONGEST_UNPROVED_BYTES
        with ignoring(OSError):
            connection.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)

    @property
    def fd(self) -> int:
        return self._socket.fileno()

    @property
    def own_address(self) -> str:
        return str(self._socket.getsockname()[0])

    @property
    def peer_address(self) -> str:
        with ignoring(OSError):
            return str(self._socket.getpeername()[0])
        return "unknown"

    @property
    def has_unsent(self) -> bool:
        return self.is_open and bool(self._unsent)

    def send(self, kind: str, shared: bytes = b"", **content: Any) -> None:
        """`shared`: more of the content, from `encoded`."""
        if self.is_open:
            line = dumps({"kind": kind, **content}).encode()
            with self._sending:
                self._unsent += line[:-1] + b", " + shared + b"}" if shared else line
                self._unsent += b"\n"
            self.flush()

    def flush(self) -> None:
        with self._sending:
            try:
                while self._unsent:
                    del self._unsent[: self._socket.send(self._unsent)]
            except BlockingIOError:
                return
            except OSError:
                self.is_open = False

    def receive(self) -> list[dict[str, Any]]:
        """Every whole message that has arrived."""
        messages: list[dict[str, Any]] = []
        while self.is_open:
            try:
                data = self._socket.recv(1 << 16)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            self.is_open = bool(data)
            *ends, rest = data.split(b"\n")
            for end in ends:
                line = bytes(self._partial + end)
                self._partial.clear()
                if len(line) > self._longest_bytes:
                    # before anybody looks inside
                    self.close()
                    return messages
                if (message := parse_message(line)) is not None:
                    messages.append(message)
            self._partial += rest
            if len(self._partial) > self._longest_bytes:
                self.close()
        return messages

    def next_message(self, deadline_s: float) -> dict[str, Any]:
        """Waits for it; OSError when the other end is gone, or silent until then (monotonic clock)."""
        while not self._ready:
            left_s = deadline_s - time.monotonic()
            if not self.is_open:
                raise ConnectionError("the other end is gone")
            # what has arrived counts, however late it is looked at
            self.wait(max(0.0, left_s))
            self._ready += self.receive()
            if left_s <= 0 and not self._ready:
                raise TimeoutError("the other end is silent")
        return self._ready.pop(0)

    def wait(self, seconds: float) -> None:
        """Until something has arrived; meanwhile what could not be sent yet leaves."""
        # not `select.select`, which knows no descriptor beyond 1,023
        poll = select.poll()
        poll.register(self.fd, select.POLLIN | (select.POLLOUT if self.has_unsent else 0))
        if any(event & select.POLLOUT for _, event in poll.poll(seconds * 1000)):
            self.flush()

    def has_word(self, seconds: float) -> bool:
        """Whether something arrives within so long."""
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def close(self) -> None:
        self.is_open = False
        with ignoring(OSError):
            self._socket.close()

    # the head's side of the handshake never blocks: whoever connects and then says nothing must not hold it up

    def challenge(self) -> None:
        self._nonce = new_nonce()
        self._settle()
        self.send("challenge", nonce=self._nonce, topout=__version__)

    def accept(self, answer: dict[str, Any], token: str) -> bool:
        """Whether the answer to our challenge shows the token; then the other end is told that we know it, too."""
        if answer.get("kind") != "answer" or not _is_proof(answer, token, self._nonce, "agent"):
            self.send("refused")
            self.close()
            return False
        self.peer_version = _text(answer, "topout") or "unknown"
        self._longest_bytes = _LONGEST_LINE_BYTES
        proof = _proof(token, _text(answer, "nonce"), "head")
        self.send("welcome", proof=proof, now_ns=time.monotonic_ns())
        return True

    # those who have nothing else to do meanwhile

    def prove_as_head(self, token: str) -> None:
        """Raises NotOursError unless the other end knows the token."""
        self.challenge()
        if not self.accept(self._await("answer"), token):
            raise NotOursError(f"{self.peer_address} does not know this job's token")

    def prove_as_agent(self, token: str) -> None:
        """Raises NotOursError unless the other end is this job's head."""
        own_nonce = new_nonce()
        self._settle()
        challenge = self._await("challenge")
        self.peer_version = _text(challenge, "topout") or "unknown"
        asked_ns = time.monotonic_ns()
        proof = _proof(token, _text(challenge, "nonce"), "agent")
        self.send("answer", proof=proof, nonce=own_nonce, topout=__version__)
        welcome = self._await("welcome")
        told_ns = time.monotonic_ns()
        if not _is_proof(welcome, token, own_nonce, "head"):
            self.close()
            raise NotOursError("the other end does not know this job's token")
        now_ns = welcome.get("now_ns")
        if isinstance(now_ns, int):
            self.clock_offset_ns = now_ns - (asked_ns + told_ns) // 2
        self._longest_bytes = _LONGEST_LINE_BYTES

    def _await(self, kind: str) -> dict[str, Any]:
        try:
            message = self.next_message(time.monotonic() + HANDSHAKE_S)
        except OSError as error:
            self.close()
            raise NotOursError("it does not answer as topout does") from error
        if message.get("kind") == "refused":
            self.close()
            raise RefusedError("it knows another token")
        if message.get("kind") != kind:
            self.close()
            raise NotOursError(f"it said {_text(message, 'kind')[:40]!r}")
        return message

    def _settle(self) -> None:
        self._socket.setblocking(False)
        with ignoring(OSError):
            # a host that loses power or its cable says nothing; the kernel gives up a connection on which what was sent
            # stays unacknowledged: a message, or where nobody has anything to say, the kernel's own question
            self._socket.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_USER_TIMEOUT, int(_LOST_AFTER_S * 1000))
            self._socket.setsockopt(_socket.SOL_SOCKET, _socket.SO_KEEPALIVE, 1)
            self._socket.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_KEEPIDLE, int(_LOST_AFTER_S / 4))
            self._socket.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_KEEPINTVL, int(_LOST_AFTER_S / 4))


def encoded(**content: Any) -> bytes:
    """What many wires are to send, put into words once; at least one thing."""
    return dumps(content).encode()[1:-1]


def _text(message: dict[str, Any], name: str) -> str:
    """Empty for whatever else somebody unproved put there."""
    value = message.get(name)
    return value if isinstance(value, str) else ""


def _proof(token: str, nonce: str, role: str) -> str:
    return hmac_sha256(token.encode(), f"{role}:{nonce}".encode(errors="replace"))


def _is_proof(message: dict[str, Any], token: str, nonce: str, role: str) -> bool:
    return is_same_text(_text(message, "proof"), _proof(token, nonce, role))
