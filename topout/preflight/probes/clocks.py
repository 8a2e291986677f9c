"""How far the clocks of the hosts are apart: round trips between the first host and each other one.

The quickest round trip tells most: the other clock was read somewhere within it, so the offset is known to half of it.
Not for aligning recordings; those are aligned by the collectives in them.
"""

import time

from topout.launch.wire import Wire
from topout.preflight.facts import ClockReading
from topout.preflight.probes.meeting import Meeting

_NUM_TRIPS = 20


def read_clocks(meeting: Meeting, names: list[str]) -> tuple[ClockReading, ...]:
    """All hosts call it; the first one gets a reading of each other, the others nothing."""
    deadline_s = min(time.monotonic() + 10.0, meeting.deadline_s)
    if not meeting.is_first:
        if meeting.hub is not None:
            _answer(meeting.hub, deadline_s)
        return ()
    found = []
    for number, wire in list(meeting.members.items()):
        try:
            found.append(_measure(wire, names[number], deadline_s))
        except OSError:
            meeting.members.pop(number).close()
    return tuple(found)


def _measure(wire: Wire, host: str, deadline_s: float) -> ClockReading:
    best: ClockReading | None = None
    for _ in range(_NUM_TRIPS):
        before_s, before_epoch_s = time.monotonic(), time.time()
        wire.send("clock")
        answer = wire.next_message(deadline_s)
        after_epoch_s, after_s = time.time(), time.monotonic()
        uncertainty_s = (after_s - before_s) / 2
        if best is None or uncertainty_s < best.uncertainty_s:
            best = ClockReading(
                host=host,
                at_s=(before_s + after_s) / 2,
                realtime_offset_s=answer["realtime_s"] - (before_epoch_s + after_epoch_s) / 2,
                monotonic_offset_s=answer["monotonic_s"] - (before_s + after_s) / 2,
                uncertainty_s=uncertainty_s,
            )
    wire.send("enough")
    assert best is not None
    return best


def _answer(wire: Wire, deadline_s: float) -> None:
    while wire.next_message(deadline_s).get("kind") == "clock":
        wire.send("time", monotonic_s=time.monotonic(), realtime_s=time.time())
