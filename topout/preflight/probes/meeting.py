"""Where the probes of all hosts meet: exchange values, and wait for each other before they measure something together.

A star around the first host, on the address and port that the launcher chose for the job. A host that fails or is late
is left out from then on; the others go on. Not for large data.
"""

import os
import socket
import time
from collections.abc import Mapping
from typing import Any, Self

from topout.launch.rendezvous import connect, job_token
from topout.launch.wire import NotOursError, Wire
from topout.schema.errors import TopoutError

SECRET_VARIABLE = "TOPOUT_DOCTOR_TOKEN"
"""What probes show each other where the doctor started them all, and could hand it to them."""


class Meeting:
    """The other hosts of this doctor run, seen from one of them."""

    def __init__(self, *, number: int, size: int, deadline_s: float) -> None:
        self.number = number
        self.size = size
        self.deadline_s = deadline_s
        """On the monotonic clock; nobody waits longer."""
        self.address: str | None = None
        """At which the other hosts reach this one; None on a single host."""
        self.members: dict[int, Wire] = {}
        """Of the first host: everybody else, as long as they answer."""
        self.hub: Wire | None = None
        """Of everybody else: the first host."""
        self.problem: str | None = None
        self._early: dict[tuple[int, str], Any] = {}

    @property
    def is_first(self) -> bool:
        return self.number == 0

    def exchange(self, name: str, value: Any, patience_s: float = 20.0) -> list[Any]:
        """Everybody's value, in the order of hosts; None for those who did not come. All call it with the same name."""
        until_s = min(time.monotonic() + patience_s, self.deadline_s)
        alone = [value if number == self.number else None for number in range(self.size)]
        if self.is_first:
            return self._collect(name, value, until_s)
        if self.hub is None:
            return alone
        try:
            self.hub.send("value", name=name, value=value)
            while True:
                # the first host may itself wait for the slowest, so the answer is awaited longer than the question
                answer = self.hub.next_message(min(until_s + patience_s, self.deadline_s))
                if answer.get("name") == name:
                    return list(answer["values"])
        except OSError as error:
            self.hub, self.problem = None, f"the first host was not heard any more: {error}"
            return alone

    def hand_in(self, name: str, value: Any, until_s: float) -> list[Any]:
        """As `exchange`, for values too long to tell everybody: the first host gets all, the others get nothing.

        `until_s` may be later than the deadline: this is for what was found by then.
        """
        if self.is_first:
            return self._heard(name, value, until_s)
        if self.hub is not None:
            self.hub.send("value", name=name, value=value)
            while self.hub.has_unsent and (left_s := until_s - time.monotonic()) > 0:
                self.hub.wait(left_s)
        return []

    def close(self) -> None:
        for wire in [*self.members.values(), *([self.hub] if self.hub else [])]:
            wire.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _collect(self, name: str, value: Any, until_s: float) -> list[Any]:
        values = self._heard(name, value, until_s)
        for wire in self.members.values():
            wire.send("values", name=name, values=values)
        return values

    def _heard(self, name: str, value: Any, until_s: float) -> list[Any]:
        values = [value, *([None] * (self.size - 1))]
        for number, wire in list(self.members.items()):
            try:
                values[number] = self._hear(number, wire, name, until_s)
            except OSError:
                # it may be slow or dead; whoever misses one exchange is out of step with the rest
                self.members.pop(number).close()
        return values

    def _hear(self, number: int, wire: Wire, name: str, until_s: float) -> Any:
        while (number, name) not in self._early:
            message = wire.next_message(until_s)
            self._early[number, message["name"]] = message["value"]
        return self._early.pop((number, name))


def meet(environ: Mapping[str, str] = os.environ, *, deadline_s: float) -> Meeting:
    """Joins the other hosts; a meeting nobody else came to has a `problem`, and is no reason not to measure alone."""
    number, size = int(environ.get("GROUP_RANK", "0")), int(environ.get("GROUP_WORLD_SIZE", "1"))
    meeting = Meeting(number=number, size=size, deadline_s=deadline_s)
    if size == 1:
        return meeting
    place = (environ["MASTER_ADDR"], int(environ["MASTER_PORT"]))
    until_s = min(time.monotonic() + 20.0, deadline_s)
    try:
        if number == 0:
            _await_members(meeting, place, token_of(environ), until_s)
        else:
            _join(meeting, place, token_of(environ), until_s)
    except OSError as error:
        meeting.problem = f"{place[0]}:{place[1]}: {error}"
    return meeting


def token_of(environ: Mapping[str, str]) -> str:
    """Shown by whoever joins: the doctor's, else made from the place of the meeting and the key of this user.

    Not from the run folder: hosts that do not see it have another.
    """
    names = ("MASTER_ADDR", "MASTER_PORT")
    try:
        return environ.get(SECRET_VARIABLE) or job_token("|".join(environ.get(name, "") for name in names), environ)
    except TopoutError as error:
        # without a key there is no meeting, and the host says why
        raise OSError(f"{error.problem} {error.why}") from error


def server_at(place: tuple[str, int], backlog: int | None = None) -> socket.socket:
    family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
    return socket.create_server(place, family=family, backlog=backlog)


def _await_members(meeting: Meeting, place: tuple[str, int], token: str, until_s: float) -> None:
    meeting.address = place[0]
    with server_at(place, backlog=meeting.size) as server:
        while len(meeting.members) < meeting.size - 1:
            server.settimeout(max(until_s - time.monotonic(), 0.001))
            try:
                connection, _ = server.accept()
            except TimeoutError:
                meeting.problem = f"{meeting.size - 1 - len(meeting.members)} of {meeting.size} hosts did not come"
                return
            wire = Wire(connection)
            try:
                wire.prove_as_head(token)
                number = int(wire.next_message(time.monotonic() + 2.0)["number"])
            except (OSError, NotOursError, KeyError, ValueError):
                wire.close()
                continue
            meeting.members[number] = wire


def _join(meeting: Meeting, place: tuple[str, int], token: str, until_s: float) -> None:
    try:
        meeting.hub = connect([place[0]], [place[1]], token, timeout_s=until_s - time.monotonic())
    except TopoutError as error:
        raise OSError(error.why) from error
    meeting.address = meeting.hub.own_address
    meeting.hub.send("hello", number=meeting.number)
