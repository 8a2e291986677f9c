"""What an all-reduce costs on this job's link: time = alpha + bytes / bandwidth, measured in a moment.

A few small and a few large messages on the group that carries the gradients; the quickest of each counts, since
scheduling noise only ever adds. Not `topout doctor`'s measurement, which takes longer, covers every pair of hosts and
gives intervals.
"""

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

from topout.train.place import Place

SMALL_BYTES, LARGE_BYTES = 4 << 10, 4 << 20
_NUM_SMALL, _NUM_LARGE = 8, 3


@dataclass(frozen=True, kw_only=True)
class Link:
    """`bytes_per_s` is of gradients averaged, not of bytes on the wire, so no factor for the number of ranks is due."""

    alpha_s: float
    bytes_per_s: float

    def time_s(self, num_bytes: float) -> float:
        return self.alpha_s + num_bytes / self.bytes_per_s


def measure(place: Place) -> Link:
    """All ranks measure together and go on with the same numbers: the slowest rank's."""
    small_s = _quickest_s(place, SMALL_BYTES, _NUM_SMALL)
    large_s = _quickest_s(place, LARGE_BYTES, _NUM_LARGE)
    slowest = torch.tensor([small_s, large_s], dtype=torch.float64, device=place.device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=place.group)
    return link_between(*slowest.tolist())


def link_between(small_s: float, large_s: float) -> Link:
    """The line through the two points; a link on which the large message took no longer has no slope to speak of."""
    per_byte_s = max(large_s - small_s, 0.05 * large_s) / (LARGE_BYTES - SMALL_BYTES)
    return Link(alpha_s=max(small_s - SMALL_BYTES * per_byte_s, 0.1 * small_s), bytes_per_s=1 / per_byte_s)


def _quickest_s(place: Place, num_bytes: int, count: int) -> float:
    message = torch.zeros(num_bytes // 4, device=place.device)
    times = []
    # the first one opens connections
    for _ in range(count + 1):
        dist.barrier(group=place.group)
        start_s = time.perf_counter()
        dist.all_reduce(message, group=place.group)
        if place.device.type == "cuda":
            torch.cuda.synchronize(place.device)
        times.append(time.perf_counter() - start_s)
    return min(times[1:])
