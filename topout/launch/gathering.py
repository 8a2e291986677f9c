"""Finds the job's launchers: listens on one address of the job, until all of those who know its token have arrived.

Whoever connects and says nothing, or does not know the token, is dropped without holding up the others.
"""

from __future__ import annotations

import _socket
import errno
import time

from topout import __version__
from topout.host.light_selector import Selector
from topout.host.light_socket import Socket
from topout.host.open_files import allow_open_files, most_open_files
from topout.launch.link import Link, check_open
from topout.launch.member import Member
from topout.launch.plain_values import from_plain
from topout.launch.signals import EndedByError, LauncherSignals
from topout.launch.wire import HANDSHAKE_S, Wire
from topout.schema.errors import ExitCode, TopoutError
from topout.schema.ignoring import ignoring

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


_ACCEPT_AGAIN_S = 0.05


class Gathering:
    """Open until left; then nobody else is let in."""

    def __init__(self, listener: Socket, token: str, local: Member | None) -> None:
        self._listener = listener
        self._token = token
        self._local = local
        self._pending: dict[int, tuple[Wire, float]] = {}
        self._links: dict[int, Link] = {}
        self._num_refused = 0
        """Who knocked with another token."""
        self._not_taken: OSError | None = None
        """There was no descriptor left for the last one at the door."""
        self._selector = Selector()
        self._selector.register(listener.fileno(), self._accept)

    def __enter__(self) -> Gathering:
        return self

    def __exit__(self, kind: Any, error: Any, where: Any) -> None:
        self._selector.close()
        self._listener.close()
        for wire, _ in self._pending.values():
            wire.close()
        if error is not None:
            # they must not wait for a job that will not come
            exit_code = 128 + error.number if isinstance(error, EndedByError) else int(ExitCode.ENVIRONMENT)
            for link in self._links.values():
                link.wire.send("bye", exit_code=exit_code)
                link.wire.close()

    def await_all(
        self,
        num_wanted: int,
        *,
        timeout_s: float,
        signals: LauncherSignals,
        check: Callable[[], None],
        missing: Callable[[set[int]], str],
        meanwhile: Callable[[], bool] = lambda: False,
    ) -> list[Link]:
        """Everybody, or an error that says who is missing.

        `check` raises when those who start the others gave up; `missing` names who is not among the numbers given;
        `meanwhile` does a little of something else, and returns False when all is done.
        """
        allow_open_files(num_wanted)
        self._selector.register(signals.fd, lambda: None)
        progress_at = time.monotonic()
        has_more = True
        while len(self._arrived()) < num_wanted:
            num_before = len(self._links)
            # newcomers take the time from how soon their word is answered
            may_load = has_more and not self._pending
            ready = self._selector.select(0.0 if may_load else 0.1)
            for act in ready:
                act()
            if may_load and not ready:
                has_more = meanwhile()
            before = time.monotonic()
            signals.raise_if_asked()
            now = time.monotonic()
            # stopped by Ctrl-Z, nobody could arrive, nor be heard
            progress_at += now - before
            self._pending = {fd: (wire, at + now - before) for fd, (wire, at) in self._pending.items()}
            if len(self._links) > num_before:
                progress_at = now
            self._drop_silent(now)
            arrived = self._arrived()
            if len(arrived) < num_wanted:
                check()
            if now - progress_at > timeout_s:
                raise self._not_all(f"{num_wanted - len(arrived)} of {num_wanted}", missing(arrived), timeout_s)
        # who came and has gone again would be missing without a word
        check_open(self._links.values())
        return list(self._links.values())

    def _arrived(self) -> set[int]:
        own = {self._local.number} if self._local is not None else set()
        return own | set(self._links)

    def _not_all(self, how_many: str, who: str, timeout_s: float) -> TopoutError:
        if self._not_taken is not None:
            return TopoutError(
                f"{how_many} could not be let in: {who}.",
                why=f"{self._not_taken.strerror}: {_socket.gethostname()}, where the first launcher "
                f"runs, lets a process have {most_open_files()} files open",
                do="raise that host's hard limit (ulimit -Hn shows it), or start topout once, not once for every rank",
                exit_code=ExitCode.ENVIRONMENT,
            )
        if self._num_refused:
            return TopoutError(
                f"{how_many} did not arrive: {who}.",
                why="a topout came and knew another token: ~/.config/topout/key is not the same on all hosts, or "
                "TOPOUT_TOKEN differs",
                do="give all tasks the same TOPOUT_TOKEN; hosts that do not share the home folder need it",
                exit_code=ExitCode.ENVIRONMENT,
            )
        return TopoutError(
            f"{how_many} did not arrive: {who}.",
            why=f"nobody else came within {timeout_s:g} s; a host may be down, slow to start, or behind "
            "a filter between compute nodes",
            do="topout doctor, or wait longer with --start-timeout 120",
            exit_code=ExitCode.ENVIRONMENT,
        )

    def _drop_silent(self, now: float) -> None:
        for fd, (wire, deadline) in list(self._pending.items()):
            if now > deadline or not wire.is_open:
                self._forget(fd)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            # out of descriptors, say: the connection is still there, and would be offered again without end
            self._not_taken = error if error.errno in (errno.EMFILE, errno.ENFILE) else None
            time.sleep(_ACCEPT_AGAIN_S)
            return
        self._not_taken = None
        wire = Wire(connection)
        wire.challenge()
        fd = wire.fd
        self._pending[fd] = (wire, time.monotonic() + HANDSHAKE_S)
        self._selector.register(fd, lambda: self._hear_newcomer(fd))

    def _hear_newcomer(self, fd: int) -> None:
        wire, _ = self._pending[fd]
        for message in wire.receive():
            if not wire.peer_version:
                if not wire.accept(message, self._token):
                    self._num_refused += message.get("kind") == "answer"
                    break
            elif message.get("kind") == "hello":
                self._selector.unregister(fd)
                del self._pending[fd]
                self._admit(wire, message)
            elif message.get("kind") == "ending":
                # came right behind its hello
                raise EndedByError(int(message["number"]))
        if not wire.is_open and fd in self._pending:
            self._forget(fd)

    def _admit(self, wire: Wire, message: dict[str, Any]) -> None:
        if wire.peer_version != __version__:
            # before its member is read, which another version may write otherwise
            name = message.get("member", {}).get("host", {}).get("name", wire.peer_address)
            raise TopoutError(
                f"{name} runs another topout than {_socket.gethostname()}.",
                why=f"it has version {wire.peer_version}, the first host has {__version__}",
                do="install the same version in the environment of every host",
                exit_code=ExitCode.ENVIRONMENT,
            )
        member = from_plain(Member, message["member"])
        if member.number in self._links or (self._local is not None and self._local.number == member.number):
            raise TopoutError(
                f"Two launchers claim place {member.number} of this job: one on {member.host.name}.",
                why="the same job was joined twice, or its tasks do not know their ranks",
                do="start topout once for every task",
                exit_code=ExitCode.ENVIRONMENT,
            )
        self._links[member.number] = Link(wire, member, heard_at=time.monotonic())

    def _forget(self, fd: int) -> None:
        wire, _ = self._pending.pop(fd)
        with ignoring(KeyError, ValueError):
            self._selector.unregister(fd)
        wire.close()
