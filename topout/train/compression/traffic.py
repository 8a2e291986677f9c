"""What compression has sent, what plain DDP would have sent, and how long the exchange took."""

import threading
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Traffic:
    """Counters of one rank that only grow; callbacks of several threads add to them."""

    bytes_sent: int = 0
    bytes_plain: int = 0
    """What an all-reduce of the same gradients, uncompressed, sends."""
    busy_ns: int = 0
    """From a bucket's being ready to its averages', less where it waited in the queue; buckets may overlap."""
    _lock: Any = field(default_factory=threading.Lock, repr=False)

    def add(self, *, sent: int = 0, plain: int = 0, busy_ns: int = 0) -> None:
        with self._lock:
            self.bytes_sent += sent
            self.bytes_plain += plain
            self.busy_ns += busy_ns


def all_reduce_bytes(num_bytes: int, num_ranks: int) -> int:
    """What one rank sends in a bandwidth-optimal all-reduce; a ring, or halving and doubling."""
    return 2 * num_bytes * (num_ranks - 1) // num_ranks
