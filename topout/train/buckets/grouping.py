"""Which gradients to average together, from when each is ready and what the link costs.

Groups travel one after another, in the order in which backward finishes them:

    finish(group) = max(finish(group before), ready(last gradient of group)) + alpha + bytes / bandwidth

The grouping with the earliest finish of the last one is found exactly, by dynamic programming over where groups end.
Large groups save alpha, small ones start earlier. Not the last word: on a host whose cores also compute, sending slows
backward, which this model does not know. `autotune` therefore measures before it believes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from topout.train.link import Link

Int64s = npt.NDArray[np.int64]

NEAR_ENOUGH = 0.005
"""Of plans whose finishes differ by less than this share the one with fewer groups wins: each is work for the host."""
FULL_RATE = 16.0
"""A message that takes so many times alpha to carry reaches 16/17 of the bandwidth."""
FIRST_SHARES = (0.25, 0.5)
"""Sizes of the first groups beside the others of `fine`, where the link is what takes longest: it stands idle until
the first one is ready. Elsewhere every group is work for a processor that is busy, and these are no gain."""
DDP_FIRST_BYTES, DDP_BYTES = 1 << 20, 25 << 20
MOST_GROUPS = 64
MOST_BOUNDARIES = 512


@dataclass(frozen=True, kw_only=True)
class Gradient:
    """One parameter's gradient: its size, and when backward had it ready, from the start of the step."""

    num_bytes: int
    ready_s: float


def finish_s(gradients: Sequence[Gradient], ends: Sequence[int], link: Link) -> float:
    """When the last group has arrived; `ends` are the numbers of gradients before each group's end."""
    now_s, begin = 0.0, 0
    for end in ends:
        group = gradients[begin:end]
        now_s = max(now_s, *(gradient.ready_s for gradient in group))
        now_s += link.time_s(sum(gradient.num_bytes for gradient in group))
        begin = end
    return now_s


def plan(gradients: Sequence[Gradient], link: Link) -> tuple[int, ...]:
    """Where groups end: of the plans that finish about as early as any, one with the fewest groups.

    Gradients come in the order in which they become ready; best[k, n] is the first n's earliest finish in k groups.
    """
    ends = _boundaries(gradients)
    ready_s = np.maximum.accumulate([gradient.ready_s for gradient in gradients])[ends[1:] - 1]
    sizes = np.concatenate([[0], np.cumsum([gradient.num_bytes for gradient in gradients])]).astype(np.float64)[ends]
    num = len(ends) - 1
    most = min(num, MOST_GROUPS)
    best_s = np.full((most + 1, num + 1), np.inf)
    best_s[0, 0] = 0.0
    begins = np.zeros((most + 1, num + 1), dtype=np.int64)
    for end in range(1, num + 1):
        costs_s = link.alpha_s + (sizes[end] - sizes[:end]) / link.bytes_per_s
        finishes_s = np.maximum(best_s[:most, :end], ready_s[end - 1]) + costs_s
        begins[1:, end] = np.argmin(finishes_s, axis=1)
        best_s[1:, end] = np.min(finishes_s, axis=1)
    count = int(np.argmax(best_s[:, num] <= (1 + NEAR_ENOUGH) * best_s[:, num].min()))
    found: list[int] = []
    end = num
    while count > 0:
        found.append(int(ends[end]))
        end, count = int(begins[count, end]), count - 1
    return tuple(reversed(found))


def as_ddp(gradients: Sequence[Gradient]) -> tuple[int, ...]:
    """DDP's own groups: a group ends with the gradient that fills it, the first one sooner."""
    ends, size, limit = [], 0, DDP_FIRST_BYTES
    for number, gradient in enumerate(gradients, start=1):
        size += gradient.num_bytes
        if size >= limit or number == len(gradients):
            ends.append(number)
            size, limit = 0, DDP_BYTES
    return tuple(ends)


def fine(gradients: Sequence[Gradient], link: Link) -> tuple[int, ...]:
    """Groups of about one size, as small as the link carries at about its full rate.

    Where the link takes longer than backward, smaller ones come first. Hardly later than `plan` where that is right,
    and no worse where backward takes other times than it was seen to.
    """
    sizes = np.cumsum([gradient.num_bytes for gradient in gradients])
    num_full = math.ceil(sizes[-1] / (FULL_RATE * link.alpha_s * link.bytes_per_s))
    takes_longer_to_carry = gradients[-1].ready_s - gradients[0].ready_s < sizes[-1] / link.bytes_per_s
    shares = np.cumsum([*(FIRST_SHARES if takes_longer_to_carry else (1.0,)), *[1.0] * (num_full - 1)])
    # where each group would end if gradients could be divided
    wanted = shares[:-1] / shares[-1] * sizes[-1]
    ends = 1 + np.searchsorted(sizes, wanted)
    return tuple(sorted({*map(int, ends), len(gradients)}))


def _boundaries(gradients: Sequence[Gradient]) -> Int64s:
    """Where a group may end: after every gradient; with very many of them, not inside runs of small ones."""
    sizes = np.cumsum([gradient.num_bytes for gradient in gradients])
    if len(gradients) <= MOST_BOUNDARIES:
        return np.arange(len(gradients) + 1, dtype=np.int64)
    parts = sizes * MOST_BOUNDARIES // (sizes[-1] + 1)
    changes = np.flatnonzero(np.diff(parts)) + 1
    return np.concatenate([[0], changes, [len(gradients)]]).astype(np.int64)


def group_bytes(gradients: Sequence[Gradient], ends: Sequence[int]) -> tuple[int, ...]:
    """The size of each group: as a limit it closes DDP's bucket exactly there."""
    begins = [0, *ends[:-1]]
    return tuple(
        sum(gradient.num_bytes for gradient in gradients[begin:end]) for begin, end in zip(begins, ends, strict=True)
    )
