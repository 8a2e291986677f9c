"""The leading launcher: tells the job's other launchers what to start, and hears how it went.

It decides for the whole job; each of the others only runs the ranks of its host. Not for finding them; see `gathering`.
"""

# paths are texts here: ranks that start do not wait for `pathlib`
# ruff: noqa: PTH109

from __future__ import annotations

import os
import time

from topout.host.light_selector import Selector
from topout.launch.link import Link, check_open, deliver, lost_at_start
from topout.launch.meeting_point import MeetingPoint
from topout.launch.member import Member
from topout.launch.outcome import AFTER_A_FAILURE, Cause, Orders
from topout.launch.plain_values import from_plain, outline, to_plain
from topout.launch.ports import free_ports
from topout.launch.roster import Roster
from topout.launch.signals import EndedByError, LauncherSignals
from topout.launch.wire import encoded
from topout.schema.errors import ExitCode, TopoutError
from topout.schema.launcher_process import describe_launcher
from topout.schema.light_dataclass import replace
from topout.schema.spec import RunSpec
from topout.schema.world import World

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from topout.launch.first_failure import RankEnd
    from topout.launch.stop_agreement import Order
    from topout.launch.stopping import Stopping
    from topout.launch.supervise import Supervisor
    from topout.launch.watching import Watching

_REPLY_S = 20.0
"""For small questions to hosts that are all there."""
_SILENCE_LOST_S = 60.0
"""A launcher that says nothing for so long is gone, or stopped; `watchdog` names it long before."""
_LARGEST_GAP_S = 5.0
"""Ticking less often than this, the head itself was stopped, and nobody could be heard meanwhile."""
_STARTED_AT_ONCE = 64
"""A start of the largest jobs may be a megabyte long, and each link keeps what has not left yet."""


class Head:
    """Lives as long as the job, over restarts."""

    def __init__(self, links: Sequence[Link], local: Member | None, token: str, say: Callable[[str], None]) -> None:
        self._token = token
        self._say = say
        self.links = {link.member.number: link for link in links}
        self.local = local
        """The head's own rank, where a scheduler started it as one of the tasks."""
        self._selector = Selector()
        self._supervisor: Supervisor | None = None
        self.meeting_point: MeetingPoint | None = None
        self.show: Callable[[int, bytes], None] = lambda stream, data: None
        self.started: Callable[[dict[int, int]], None] = lambda pids: None
        self.tails: dict[int, str] = {}
        self.oom_kills: dict[int, int | None] = {}
        self.lost_hosts: list[str] = []
        self.stopping: Stopping | None = None
        self.watching: Watching | None = None
        self.has_told = False
        """A rank elsewhere was told to stop."""
        self._replies: dict[str, dict[int, dict[str, Any]]] = {}
        self._ticked_at = time.monotonic()

    # before a round

    def members(self) -> list[Member]:
        own = [self.local] if self.local is not None else []
        members = [*own, *(link.member for link in self.links.values() if link.wire.is_open)]
        return sorted(members, key=lambda member: member.number)

    def prepare(self, roster: Roster, signals: LauncherSignals) -> World:
        """Ports on every host, and a meeting point that all of them have reached."""
        world = roster.world
        self._replies.clear()
        master = next(number for number, ranks in roster.ranks_of.items() if any(rank.rank == 0 for rank in ranks))
        ports: dict[int, list[int]] = {}
        folder = os.getcwd()
        for number, link in self._taking_part(roster):
            num_ranks = len(roster.ranks_of[number])
            link.wire.send("prepare", num_ranks=num_ranks, is_master=number == master, cwd=folder)
        if self.local is not None:
            ports[self.local.number] = free_ports(self.local.host.address, len(roster.ranks_of[self.local.number]))
        asked: set[int] = set()
        if self.local is not None and self.local.number == master:
            point = self._meet_at(self.local.host.address)
            # where they meet is known already, so nobody waits for a second question
            asked = self._ask_to_reach(roster, master, point.address, point.port)
        replies = self._ask(roster, "prepared", signals)
        self._check_entered(folder, replies)
        ports.update({number: list(reply["ports"]) for number, reply in replies.items()})
        if self.meeting_point is not None:
            address, port = self.meeting_point.address, self.meeting_point.port
        else:
            address, port = str(replies[master]["address"]), int(replies[master]["master_port"])
            asked = self._ask_to_reach(roster, master, address, port)
        self._await_reached(roster, asked, f"{address}:{port}", signals)
        of_rank = {
            rank.rank: port
            for number, ranks in roster.ranks_of.items()
            for rank, port in zip(ranks, ports[number], strict=True)
        }
        ranks = tuple(replace(rank, port=of_rank[rank.rank]) for rank in world.ranks)
        return replace(world, ranks=ranks, master_address=address, master_port=port)

    def start(self, roster: Roster, world: World, spec: RunSpec, **more: Any) -> None:
        """`more` is what else a launcher needs to know, as `agent` reads it."""
        self._forget_last_round()
        shared = encoded(world=outline(world), spec=to_plain(spec), launcher=describe_launcher(), **more)
        taking_part = self._taking_part(roster)
        deadline = time.monotonic() + _REPLY_S
        for first in range(0, len(taking_part), _STARTED_AT_ONCE):
            some = taking_part[first : first + _STARTED_AT_ONCE]
            for number, link in some:
                own = [world.ranks[rank.rank] for rank in roster.ranks_of[number]]
                link.ranks = tuple(rank.rank for rank in own)
                link.has_finished = False
                link.heard_at = time.monotonic()
                link.wire.send("start", shared, ranks=to_plain(own))
            deliver([link for _, link in some], deadline)
        self._ticked_at = time.monotonic()

    def dismiss(self, exit_code: int) -> None:
        """Everybody goes home; with the job's exit code where a scheduler looks at each task's."""
        for link in self.links.values():
            link.wire.send("bye", exit_code=exit_code)
            link.wire.close()
        self.release()
        self._selector.close()

    def release(self) -> None:
        """Gives the ranks' meeting point back, after a round."""
        if self.meeting_point is not None:
            self.meeting_point.close()
            self.meeting_point = None

    # during a round, as the supervisor's fellows

    @property
    def is_busy(self) -> bool:
        return any(not link.has_finished for link in self.links.values())

    def register(self, selector: Selector, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        for link in self.links.values():
            if link.has_finished:
                continue
            if link.wire.is_open:
                selector.register(link.wire.fd, self._reader(selector, link))
            else:
                self._lose(link, "its connection broke while the job was started")

    def rank_ended(self, end: RankEnd) -> None:
        """Of the head's own ranks; nobody else needs to know."""

    def warned(self, number: int) -> None:
        for link in self.links.values():
            link.wire.send("warn", number=number)

    def ask_stacks(self, ranks: Sequence[int]) -> None:
        asked = set(ranks)
        for link in self.links.values():
            if own := [rank for rank in link.ranks if rank in asked]:
                link.wire.send("stacks", ranks=own)

    def order_stop(self, order: Order) -> None:
        for link in self.links.values():
            if not link.has_finished:
                link.wire.send("stop", order=order.to_wire())

    def job_ends(self, cause: Cause, orders: Orders, number: int | None, rank: int | None) -> None:
        for link in self.links.values():
            if not link.has_finished:
                link.wire.send("end", cause=cause, orders=list(orders), number=number, rank=rank)

    def hurry(self) -> None:
        for link in self.links.values():
            if not link.has_finished:
                link.wire.send("hurry")

    def paused(self, is_paused: bool) -> None:
        for link in self.links.values():
            link.wire.send("pause", is_paused=is_paused)

    def tick(self, now: float) -> None:
        was_away = now - self._ticked_at > _LARGEST_GAP_S
        self._ticked_at = now
        for link in self.links.values():
            if link.has_finished:
                continue
            if was_away:
                link.heard_at = now
            link.wire.send("beat")
            silent_s = now - link.heard_at
            if silent_s > _SILENCE_LOST_S:
                self._lose(link, f"nothing was heard of it for {silent_s:.0f} s")

    def ends(self) -> Sequence[RankEnd]:
        return [end for link in self.links.values() for end in link.ends.values()]

    def _reader(self, selector: Selector, link: Link) -> Callable[[], None]:
        fd = link.wire.fd

        def read() -> None:
            link.heard_at = time.monotonic()
            for message in link.wire.receive():
                self._hear(link, message)
            if not link.wire.is_open:
                selector.unregister(fd)
                self._lose(link, "its connection broke")
            elif link.has_finished:
                selector.unregister(fd)

        return read

    def _hear(self, link: Link, message: dict[str, Any]) -> None:
        assert self._supervisor is not None
        kind, host = message.get("kind"), link.member.host.name
        if kind == "ended":
            from topout.launch.first_failure import RankEnd

            end = from_plain(RankEnd, message["end"])
            link.ends[end.rank] = end
            self.tails[end.rank] = str(message.get("tail", ""))
            self.oom_kills[end.rank] = message.get("num_oom_kills")
        elif kind == "ending":
            orders = [(float(after_s), int(number)) for after_s, number in message["orders"]]
            cause = Cause(message["cause"])
            self._supervisor.end_job(cause, orders, number=message.get("number"), rank=message.get("rank"))
        elif kind == "hurry" and self._supervisor.hurry():
            # of a thousand tasks that were all asked twice the first is enough
            self.hurry()
        elif kind == "finished":
            self.has_told |= bool(message.get("has_told"))
            self._finish(link)
        elif kind == "look" and self.watching is not None:
            self.watching.hear(link.member.number, message["ranks"])
        elif kind == "warned" and self.stopping is not None:
            self.stopping.warned(int(message["number"]))
        elif kind == "frozen" and self.stopping is not None:
            self.stopping.hear(link.member.number, message)
        elif kind == "started":
            self.started({int(rank): int(pid) for rank, pid in message["pids"].items()})
        elif kind == "output":
            self.show(int(message["stream"]), str(message["data"]).encode("latin-1"))
        elif kind == "say":
            self._supervisor.say(str(message["text"]))
        elif kind == "note":
            self._supervisor.note(f"{host}: {message['text']}")

    def _finish(self, link: Link) -> None:
        """From now on nobody waits for it."""
        link.has_finished = True
        if self.watching is not None:
            self.watching.finished(link.member.number)
        if self.stopping is not None:
            self.stopping.finished(link.member.number)

    def _lose(self, link: Link, why: str) -> None:
        """A host that is gone takes its ranks with it."""
        if link.has_finished:
            return
        from topout.launch.first_failure import RankEnd

        host = link.member.host.name
        link.wire.close()
        self._finish(link)
        self.lost_hosts.append(host)
        for rank in link.ranks:
            now_ns = time.monotonic_ns()
            text = f"topout lost the host {host} ({link.member.host.address}): {why}."
            link.ends.setdefault(
                rank, RankEnd(rank=rank, host=host, pid=0, ended_at_ns=now_ns, exit_code=4, failure=text)
            )
        if self._supervisor is not None:
            self._supervisor.end_job(Cause.HOST_LOST, AFTER_A_FAILURE)

    def _forget_last_round(self) -> None:
        """Also of launchers that are gone, and take no part any more."""
        self.lost_hosts.clear()
        self.tails.clear()
        self.oom_kills.clear()
        self.has_told = False
        self.stopping = self.watching = None
        for link in self.links.values():
            link.ranks, link.ends = (), {}

    # questions

    def _taking_part(self, roster: Roster) -> list[tuple[int, Link]]:
        return [(number, link) for number, link in self.links.items() if number in roster.ranks_of]

    def _check_entered(self, folder: str, replies: Mapping[int, dict[str, Any]]) -> None:
        lacking = {number: reply["why"] for number, reply in replies.items() if reply["why"]}
        if lacking:
            number, why = next(iter(lacking.items()))
            host = self.links[number].member.host.name
            others = f" and {len(lacking) - 1} more hosts" if len(lacking) > 1 else ""
            raise TopoutError(
                f"{host}{others} cannot enter the job's folder {folder}.",
                why=f"{why}; ranks run where topout was started, and find the script from there",
                do="start it in a folder on a file system that all hosts share",
                exit_code=ExitCode.ENVIRONMENT,
            )

    def _meet_at(self, address: str) -> MeetingPoint:
        self.meeting_point = MeetingPoint(address, self._token)
        self.meeting_point.register(self._selector)
        return self.meeting_point

    def _ask_to_reach(self, roster: Roster, master: int, address: str, port: int) -> set[int]:
        """One launcher of every other host tries; those on the same host would show nothing. Returns their numbers."""
        tried = {
            link.member.host.name: (number, link)
            for number, link in self._taking_part(roster)
            if number != master and link.member.host.name != roster.ranks_of[master][0].host
        }
        for _, link in tried.values():
            link.wire.send("reach", address=address, port=port)
        return {number for number, _ in tried.values()}

    def _await_reached(self, roster: Roster, asked: set[int], place: str, signals: LauncherSignals) -> None:
        replies = self._ask(roster, "reached", signals, only=asked)
        if self.meeting_point is not None:
            self.meeting_point.stop_answering()
        failed = {
            self.links[number].member.host.name: reply["why"] for number, reply in replies.items() if reply["why"]
        }
        if failed:
            host, why = next(iter(failed.items()))
            raise TopoutError(
                f"{len(failed)} of {len(asked)} hosts cannot reach {place}, where the ranks meet.",
                why=f"{host}: {why}; the port may be filtered between compute nodes",
                do="topout doctor, or name another network with --interface",
                exit_code=ExitCode.ENVIRONMENT,
            )

    def _ask(
        self, roster: Roster, kind: str, signals: LauncherSignals, only: set[int] | None = None
    ) -> dict[int, dict[str, Any]]:
        """The replies of that kind, one a launcher. A signal that ends the job, here or there, ends the asking."""
        asked = {number: link for number, link in self._taking_part(roster) if only is None or number in only}
        replies = self._replies.setdefault(kind, {})

        def reader(number: int, link: Link) -> Callable[[], None]:
            def read() -> None:
                for reply in link.wire.receive():
                    if reply.get("kind") == "ending" and reply.get("cause") == Cause.INTERRUPTED:
                        raise EndedByError(int(reply["number"]))
                    # one to another question is for whoever asks that
                    self._replies.setdefault(str(reply.get("kind")), {})[number] = reply
                if not link.wire.is_open:
                    signals.raise_if_asked(may_pause=False)
                    raise lost_at_start(link, "its connection broke")

            return read

        deadline = time.monotonic() + _REPLY_S
        check_open(asked.values())
        readers = {link.wire.fd: reader(number, link) for number, link in asked.items()}
        try:
            for fd, read in readers.items():
                self._selector.register(fd, read)
            while asked.keys() - replies.keys():
                for act in self._selector.select(0.1):
                    act()
                signals.raise_if_asked(may_pause=False)
                if time.monotonic() > deadline and asked.keys() - replies.keys():
                    silent = next(link for number, link in asked.items() if number not in replies)
                    raise lost_at_start(silent, f"no answer in {_REPLY_S:g} s")
        finally:
            self._selector.drop(readers)
            del self._replies[kind]
        return {number: replies[number] for number in asked}
