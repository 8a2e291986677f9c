"""The clock of a recording, and what maps it onto another host's.

Spans are stamped with the monotonic clock, which all processes of a host share and nothing sets back. torch's flight
recorder stamps with the epoch; pairs of both clocks, taken now and then, translate between the two.
"""

import time

now_ns = time.monotonic_ns
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
