"""The head, as the supervisor of a following launcher sees it: told over the wire how ranks do, and heard."""

from __future__ import annotations

from topout.launch import oom_kills
from topout.launch.outcome import AT_ONCE, Cause, Orders
from topout.launch.plain_values import to_plain
from topout.launch.wire import Wire
from topout.schema.light_dataclass import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from topout.host.light_selector import Selector
    from topout.launch.first_failure import RankEnd
    from topout.launch.local_ranks import LocalRanks
    from topout.launch.supervise import Supervisor

_TAIL_CHARACTERS = 4096


class FollowingFellows:
    """`local` are this launcher's ranks, once they have started."""

    is_busy = False

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._supervisor: Supervisor | None = None
        self._oom_kills_before = oom_kills.count_oom_kills()
        self.local: LocalRanks | None = None
        self.early: list[dict[str, Any]] = []
        self.unread: list[dict[str, Any]] = []
        self.is_hurried = False

    def register(self, selector: Selector, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        fd = self._wire.fd

        def read() -> None:
            for message in self._wire.receive():
                self._hear(message)
            if not self._wire.is_open:
                selector.unregister(fd)
                supervisor.end_job(Cause.HOST_LOST, AT_ONCE)

        selector.register(fd, read)
        early, self.early = self.early, []
        for message in early:
            self._hear(message)

    def rank_ended(self, end: RankEnd) -> None:
        tail = self.local.stderr_tails[end.rank][-_TAIL_CHARACTERS:] if self.local and end.code else ""
        kills = oom_kills.kills_since(self._oom_kills_before) if end.died_by_signal else None
        content = to_plain(self._on_the_heads_clock(end))
        self._wire.send("ended", end=content, tail=tail, num_oom_kills=kills)

    def could_not_start(self, rank: int, host: str, why: str) -> None:
        from topout.launch.first_failure import RankEnd

        self.rank_ended(RankEnd(rank=rank, host=host, pid=0, ended_at_ns=0, exit_code=3, failure=why))
        self._wire.send(
            "ending", cause=Cause.RANK_FAILED, orders=[list(order) for order in AT_ONCE], number=None, rank=rank
        )

    def job_ends(self, cause: Cause, orders: Orders, number: int | None, rank: int | None) -> None:
        self._wire.send("ending", cause=cause, orders=[list(order) for order in orders], number=number, rank=rank)

    def hurry(self) -> None:
        self._wire.send("hurry")

    def warned(self, number: int) -> None:
        self._wire.send("warned", number=number)

    def paused(self, is_paused: bool) -> None:
        """Only the head has a terminal."""

    def report(self, now: float) -> None:
        """Once a second: how each rank does, which is also the sign that this host lives."""
        if self.local is not None:
            self._wire.send("look", ranks=[observation.to_wire() for observation in self.local.observations()])

    def tick(self, now: float) -> None:
        self._wire.flush()

    def ends(self) -> Sequence[RankEnd]:
        return ()

    def say(self, text: str) -> None:
        self._wire.send("say", text=text)

    def note(self, text: str) -> None:
        self._wire.send("note", text=text)

    def show(self, stream: int, data: bytes) -> None:
        self._wire.send("output", stream=stream, data=data.decode("latin-1"))

    def _hear(self, message: dict[str, Any]) -> None:
        assert self._supervisor is not None
        kind = message.get("kind")
        if kind == "end":
            orders = [(float(after_s), int(number)) for after_s, number in message["orders"]]
            self._supervisor.end_job(Cause(message["cause"]), orders, number=message.get("number"))
        elif kind == "hurry":
            self.is_hurried = True
            self._supervisor.hurry()
        elif kind == "stacks" and self.local is not None:
            self.local.ask_stacks(message["ranks"])
        elif kind == "warn":
            self._supervisor.warn(int(message["number"]))
        elif kind == "stop" and self.local is not None:
            from topout.launch.stop_agreement import Order, obey

            order = Order.from_wire(message["order"])
            highest = obey(self.local.stop_page, order)
            if highest is not None:
                self._wire.send("frozen", round=order.round, highest=highest)
        elif kind == "pause":
            self._supervisor.pause(bool(message["is_paused"]))
        elif kind in ("prepare", "start", "bye"):
            self.unread.append(message)

    def _on_the_heads_clock(self, end: RankEnd) -> RankEnd:
        offset_ns = self._wire.clock_offset_ns
        return replace(
            end,
            ended_at_ns=end.ended_at_ns + offset_ns,
            told_at_ns=None if end.told_at_ns is None else end.told_at_ns + offset_ns,
            failed_at_ns=None if end.failed_at_ns is None else end.failed_at_ns + offset_ns,
        )
