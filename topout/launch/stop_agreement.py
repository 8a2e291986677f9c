"""How the launchers of a job agree at which call of `should_stop()` all its ranks stop.

Two phases, led by the head. First every launcher freezes its page: from then on its ranks wait inside `should_stop()`,
and the calls they have entered so far are final. When all launchers have answered with their highest call, the head
announces the next one, and the ranks go on; each answers True when it gets there.

Safe: a rank that passed a call unfrozen had counted it before its launcher read the counts, so no rank has passed the
announced call. Live: a decision waits for launchers alone, never for a rank, so ranks that wait inside collectives for
ranks that wait for the decision are no deadlock. Ranks need no lock step, only the same number of calls.

Rejected: announcing a call some margin ahead, since no margin is safe when a host hears late; a collective of our own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from topout.host.kernel_files import read_text
from topout.record.preemption import StopPage
from topout.schema.light_dataclass import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal


def agree(highest_calls: Iterable[int]) -> int:
    """The call at which to stop: the first that no rank has entered."""
    return max(highest_calls, default=0) + 1


@dataclass(frozen=True, kw_only=True)
class Order:
    """From the head to every launcher, its own page included, in this order on each line."""

    kind: Literal["freeze", "stop", "withdraw"]
    round: int
    call: int = 0
    """At which to stop."""

    def to_wire(self) -> dict[str, Any]:
        return {"kind": self.kind, "round": self.round, "call": self.call}

    @classmethod
    def from_wire(cls, content: Mapping[str, Any]) -> Order:
        return cls(kind=content["kind"], round=int(content["round"]), call=int(content["call"]))


def obey(page: StopPage, order: Order) -> int | None:
    """What a launcher does with an order; the highest call of its ranks is its answer to a freeze."""
    if order.kind == "freeze":
        return page.freeze()
    if order.kind == "stop":
        page.decide(order.call)
    else:
        page.withdraw()
    return None


@dataclass(kw_only=True)
class StopAgreement:
    """The head's side. Each method returns the order to give to all hosts now, or None. Times in monotonic seconds."""

    hosts: Collection[int]
    """Numbers of the hosts (or tasks) that hold a page, or held one."""
    answer_within_s: float = 5.0
    """A launcher that takes longer is in trouble, and its peers should rather train than wait."""
    again_after_s: float = 2.0
    stop_at: int | None = None
    """The call agreed on; None: not yet."""
    _round: int = 0
    _answers: dict[int, int] = field(default_factory=dict)
    _awaited: set[int] = field(default_factory=set)
    _gone: set[int] = field(default_factory=set)
    _asked_at: float | None = None
    _withdrawn_at: float | None = None

    def ask(self, now: float) -> Order | None:
        """The warning has arrived, here or at any launcher. Once is enough; repeated ones change nothing."""
        if self._asked_at is not None or self._withdrawn_at is not None or self.stop_at is not None:
            return None
        return self._begin(now)

    def hear(self, host: int, round_: int, highest_call: int) -> Order | None:
        """A launcher's answer to a freeze; one to an earlier round came too late."""
        if self._asked_at is None or round_ != self._round:
            return None
        self._answers[host] = highest_call
        self._awaited.discard(host)
        return self._conclude()

    def leave(self, host: int) -> Order | None:
        """A launcher whose ranks have all ended; it was perhaps the last that the others waited for.

        What it answered still counts: a call that its ranks have passed is none to stop at.
        """
        self._gone.add(host)
        self._awaited.discard(host)
        return self._conclude() if self._asked_at is not None and len(self._gone) < len(self.hosts) else None

    def look(self, now: float) -> Order | None:
        """Called now and then: gives up a round that takes too long, and tries again a little later."""
        if self._asked_at is not None and now - self._asked_at >= self.answer_within_s:
            self._asked_at, self._withdrawn_at = None, now
            return Order(kind="withdraw", round=self._round)
        if self._withdrawn_at is not None and now - self._withdrawn_at >= self.again_after_s:
            self._withdrawn_at = None
            return self._begin(now)
        return None

    def _conclude(self) -> Order | None:
        if self._awaited:
            return None
        self._asked_at = None
        self.stop_at = agree(self._answers.values())
        return Order(kind="stop", round=self._round, call=self.stop_at)

    def _begin(self, now: float) -> Order:
        self._asked_at = now
        self._round += 1
        self._answers.clear()
        self._awaited = set(self.hosts) - self._gone
        return Order(kind="freeze", round=self._round)


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler of its own for a signal, so that passing it on would not end the process.

    Not while it blocks the signal: a rank that was forked this moment still has its launcher's handlers.
    """
    try:
        lines = read_text(f"/proc/{pid}/status").splitlines()
        masks = {line[:6]: int(line[7:], 16) for line in lines if line.startswith(("SigCgt:", "SigBlk:"))}
        return bool((masks["SigCgt"] & ~masks["SigBlk"]) >> (number - 1) & 1)
    except (OSError, KeyError, ValueError):
        return False
