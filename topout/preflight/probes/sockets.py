"""Point-to-point over plain TCP: messages of several sizes to and fro, between two processes or two hosts.

What the network gives any program, without a library in between. Only the hosts of this job are connected to, each one
with its neighbour in the ring of hosts, so that it takes as long with a thousand hosts as with three.
"""

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from topout.launch.wire import NotOursError, Wire
from topout.preflight.facts import Link, LinkSample
from topout.preflight.probes.forked import forked
from topout.preflight.probes.meeting import Meeting, server_at, token_of

SIZES_BYTES = (64, 4 << 10, 64 << 10, 1 << 20, 8 << 20)
_BUDGET_S = 0.15
_MOST_REPEATS = 40
_FEWEST_REPEATS = 3
_TOO_LONG_S = 1.0
"""A message that takes this long is the largest one tried."""
_ANSWER_LIMIT_S = 8.0


def within_host(host: str) -> Link:
    """Over the loopback, between two processes."""
    asking, echoing = _loopback_pair()

    def echo() -> None:
        asking.close()
        _echo(echoing)

    with forked(echo), asking:
        echoing.close()
        samples = _measure(asking)
    return _link("within a host", (host, host), samples)


def between_hosts(meeting: Meeting, names: Sequence[str]) -> tuple[Link, ...]:
    """Each host with its neighbours; the one with the lower number keeps the figures."""
    if meeting.size == 1 or meeting.address is None:
        return ()
    found = []
    with server_at((meeting.address, 0), backlog=4) as server:
        places = meeting.exchange("link places", [meeting.address, server.getsockname()[1]])
        for number, pairs in enumerate(ring_rounds(meeting.size)):
            mine = next((pair for pair in pairs if meeting.number in pair), None)
            if mine is not None and all(places[end] for end in mine):
                link = _one_pair(meeting, server, mine, places, names)
                found += [link] if link is not None else []
            # the next round must not run into this one
            meeting.exchange(f"link round {number}", "done", patience_s=15.0)
    return tuple(found)


def ring_rounds(size: int) -> list[list[tuple[int, int]]]:
    """Pairs of neighbours in a ring, in rounds in which nobody is in two pairs."""
    pairs = [(number, (number + 1) % size) for number in range(size if size > 2 else size - 1)]
    rounds: list[list[tuple[int, int]]] = []
    for pair in pairs:
        free = next((r for r in rounds if not any(end in other for other in r for end in pair)), None)
        if free is None:
            rounds.append([pair])
        else:
            free.append(pair)
    return rounds


def _one_pair(
    meeting: Meeting,
    server: socket.socket,
    pair: tuple[int, int],
    places: Sequence[Sequence[object]],
    names: Sequence[str],
) -> Link | None:
    asks = meeting.number == pair[0]
    ends = (names[pair[0]], names[pair[1]])
    try:
        if asks:
            place = (str(places[pair[1]][0]), int(str(places[pair[1]][1])))
            with socket.create_connection(place, timeout=_ANSWER_LIMIT_S) as connection:
                _proved(connection, Wire.prove_as_agent)
                return _link("between hosts", ends, _measure(connection))
        with _accepted(server) as connection:
            _echo(connection)
    except OSError as error:
        where = f"{places[pair[1]][0]}:{places[pair[1]][1]}"
        return Link(
            link_class="between hosts",
            operation="point-to-point",
            transport="tcp",
            hosts=ends,
            num_ranks=2,
            problem=f"{where} from {ends[0]}: {error}",
        )
    return None


def _loopback_pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of one connection, both with this process: whoever else on this host knocks is passed over."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(_ANSWER_LIMIT_S)
        asking = socket.create_connection(server.getsockname(), timeout=_ANSWER_LIMIT_S)
        while True:
            echoing, peer = server.accept()
            if peer == asking.getsockname():
                echoing.settimeout(_ANSWER_LIMIT_S)
                return asking, echoing
            echoing.close()


@contextmanager
def _accepted(server: socket.socket) -> Iterator[socket.socket]:
    server.settimeout(_ANSWER_LIMIT_S)
    connection, _ = server.accept()
    with connection:
        _proved(connection, Wire.prove_as_head)
        connection.settimeout(_ANSWER_LIMIT_S)
        yield connection


def _proved(connection: socket.socket, prove: Callable[[Wire, str], None]) -> None:
    """Both ends know the job's token; from then on the connection carries plain bytes."""
    try:
        prove(Wire(connection), token_of(os.environ))
    except NotOursError as error:
        raise ConnectionError(f"a stranger: {error}") from error


def _measure(connection: socket.socket) -> tuple[LinkSample, ...]:
    """The time one way: half of there and back."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.settimeout(_ANSWER_LIMIT_S)
    samples = []
    for num_bytes in SIZES_BYTES:
        message, answer = num_bytes.to_bytes(8, "big") + bytes(num_bytes), memoryview(bytearray(num_bytes))
        times_s: list[float] = []
        end_s = time.perf_counter() + _BUDGET_S
        # the first trip of a size opens the window, and is not counted
        for repeat in range(_MOST_REPEATS + 1):
            start_s = time.perf_counter()
            connection.sendall(message)
            _exactly(connection, answer)
            taken_s = round((time.perf_counter() - start_s) / 2, 9)
            if repeat > 0:
                times_s.append(taken_s)
            if len(times_s) >= _FEWEST_REPEATS and time.perf_counter() > end_s:
                break
        samples.append(LinkSample(num_bytes=num_bytes, times_s=tuple(times_s)))
        if taken_s > _TOO_LONG_S / 2:
            break
    connection.sendall((0).to_bytes(8, "big"))
    return tuple(samples)


def _echo(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    buffer = bytearray(max(SIZES_BYTES))
    while num_bytes := int.from_bytes(_exactly(connection, memoryview(bytearray(8))), "big"):
        if num_bytes > len(buffer):
            raise ConnectionError("not a probe of this job")
        connection.sendall(_exactly(connection, memoryview(buffer)[:num_bytes]))


def _exactly(connection: socket.socket, view: memoryview) -> memoryview:
    got = 0
    while got < len(view):
        part = connection.recv_into(view[got:])
        if part == 0:
            raise ConnectionError("the other end is gone")
        got += part
    return view


def _link(link_class: str, hosts: tuple[str, str], samples: tuple[LinkSample, ...]) -> Link:
    return Link(
        link_class=link_class, operation="point-to-point", transport="tcp", hosts=hosts, num_ranks=2, samples=samples
    )
