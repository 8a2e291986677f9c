"""The clock of a recording, and what maps it onto another host's.

Spans are stamped with the monotonic clock, which all processes of a host share and nothing sets back. torch's flight
recorder stamps with the epoch; pairs of both clocks, taken now and then, translate between the two.
"""

import time

now_ns = time.monotonic_ns
_SET_NS = 50_000_000
"""A pair of clocks is read within less, however busy the host."""
processors_ns = time.process_time_ns
"""What all threads of the process have used."""


def clock_pair() -> tuple[int, int]:
    """(monotonic, epoch) of one instant: the tightest of a few readings."""
    best = (0, 0, 1 << 62)
    for _ in range(5):
        before = time.monotonic_ns()
        epoch = time.time_ns()
        after = time.monotonic_ns()
        if after - before < best[2]:
            best = ((before + after) // 2, epoch, after - before)
    return best[0], best[1]


class TimeOfDay:
    """Notices that the host's was set: what was stamped with it before does not fit the recording's clock."""

    def __init__(self) -> None:
        self.set_ns = 0
        """When it was last set; 0: not since the first look."""
        monotonic, epoch = clock_pair()
        self._at_zero_ns = epoch - monotonic

    def look(self) -> None:
        monotonic, epoch = clock_pair()
        if abs(epoch - monotonic - self._at_zero_ns) > _SET_NS:
            # set back, stamps of before lie after the new time: up to what the old clock read nothing is sure
            self.set_ns = max(self.set_ns, epoch, monotonic + self._at_zero_ns)
            self._at_zero_ns = epoch - monotonic
