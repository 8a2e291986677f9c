"""Another launcher of the job, as its head keeps it: who it is, its ranks, and the wire to it."""

from __future__ import annotations

import select
import time

from topout.launch.member import Member
from topout.launch.wire import Wire
from topout.schema.errors import ExitCode, TopoutError
from topout.schema.light_dataclass import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from topout.launch.first_failure import RankEnd


@dataclass
class Link:
    """One other launcher, and what is known of its ranks."""

    wire: Wire
    member: Member
    ranks: tuple[int, ...] = ()
    ends: dict[int, RankEnd] = field(default_factory=dict)
    has_finished: bool = True
    heard_at: float = 0.0


def check_open(links: Iterable[Link]) -> None:
    for link in links:
        if not link.wire.is_open:
            raise lost_at_start(link, "its connection broke")


def lost_at_start(link: Link, why: str) -> TopoutError:
    return TopoutError(
        f"{link.member.host.name} was lost while the job started.",
        why=why,
        do="look at that host; start again without it if it stays away",
        exit_code=ExitCode.ENVIRONMENT,
    )


def deliver(links: Sequence[Link], deadline: float) -> None:
    """Until all that was sent has left, or the deadline: long messages go in pieces, and beats are a second apart."""
    poll = select.poll()
    wires = {link.wire.fd: link.wire for link in links if link.wire.has_unsent}
    for fd in wires:
        poll.register(fd, select.POLLOUT)
    while wires and (left_s := deadline - time.monotonic()) > 0:
        for fd, _ in poll.poll(left_s * 1000):
            wires[fd].flush()
            if not wires[fd].has_unsent:
                poll.unregister(fd)
                del wires[fd]
