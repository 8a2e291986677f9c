"""What an all-reduce costs on this job's link: time = alpha + bytes / bandwidth, measured in a moment.

A few small and a few large messages on the group that carries the gradients, several at once as gradients travel: on a
core that also computes, threads that wait for each other make alpha many times what one message alone shows. Not
`topout doctor`'s measurement, which takes longer, covers every pair of hosts and gives intervals.
"""

import time
from dataclasses import dataclass
from statistics import median

import torch
import torch.distributed as dist

from topout.train.place import Place

SMALL_BYTES, LARGE_BYTES = 4 << 10, 4 << 20
_NUM_SMALL, _NUM_LARGE = 8, 2
_NUM_TRIES_SMALL, _NUM_TRIES_LARGE = 9, 3
"""Small messages take a moment, and what disturbs one shows the most in them: 0.25 to 0.65 ms in single tries (VM)."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """`bytes_per_s` is of gradients averaged, not of bytes on the wire, so no factor for the number of ranks is due.

    `busy_share` is the processor's part in carrying them: about 1 within a host, little on a slow link.
    """

    alpha_s: float
    bytes_per_s: float
    busy_share: float = 1.0

    def time_s(self, num_bytes: float) -> float:
        return self.alpha_s + num_bytes / self.bytes_per_s


def measure(place: Place) -> Link:
    """All ranks measure together and go on with the same numbers: the slowest rank's."""
    small_s, _ = _seconds(place, SMALL_BYTES, _NUM_SMALL, _NUM_TRIES_SMALL)
    large_s, busy_share = _seconds(place, LARGE_BYTES, _NUM_LARGE, _NUM_TRIES_LARGE)
    slowest = torch.tensor([small_s, large_s, busy_share], dtype=torch.float64, device=place.device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=place.group)
    return link_between(*slowest.tolist())


def link_between(small_s: float, large_s: float, busy_share: float = 1.0) -> Link:
    """The line through the two points; a link on which the large message took no longer has no slope to speak of."""
    per_byte_s = max(large_s - small_s, 0.05 * large_s) / (LARGE_BYTES - SMALL_BYTES)
    alpha_s = max(small_s - SMALL_BYTES * per_byte_s, 0.1 * small_s)
    return Link(alpha_s=alpha_s, bytes_per_s=1 / per_byte_s, busy_share=busy_share)


def _seconds(place: Place, num_bytes: int, num_at_once: int, num_tries: int) -> tuple[float, float]:
    """Of a message, when several are under way: the middle of some tries, after one that opens connections.

    With it the share of that time in which this process used a processor.
    """
    messages = [torch.zeros(num_bytes // 4, dtype=torch.float32, device=place.device) for _ in range(num_at_once)]
    times, shares = [], []
    for _ in range(1 + num_tries):
        dist.barrier(group=place.group)
        start_s, busy_s = time.perf_counter(), time.process_time()
        for work in [dist.all_reduce(message, group=place.group, async_op=True) for message in messages]:
            work.wait()
        if place.device.type == "cuda":
            torch.cuda.synchronize(place.device)
        took_s = time.perf_counter() - start_s
        times.append(took_s / num_at_once)
        shares.append((time.process_time() - busy_s) / took_s)
    return median(times[1:]), median(shares[1:])
