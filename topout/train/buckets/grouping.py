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


def fine(gradients: Sequence[Gradient], link: Link) -> tuple[int, ...]:
    """Groups as small as the link carries at about its full rate and of about one size, whenever gradients are ready.

    Hardly later than `plan` where that is right, and no worse where backward takes other times than it was seen to.
    """
    all_bytes = sum(gradient.num_bytes for gradient in gradients)
    # the last one as large as the others: nothing hides what each costs
    enough_bytes = all_bytes / math.ceil(all_bytes / (FULL_RATE * link.alpha_s * link.bytes_per_s))
    ends: list[int] = []
    held_bytes = 0
    for number, gradient in enumerate(gradients, start=1):
        held_bytes += gradient.num_bytes
        if held_bytes >= enough_bytes or number == len(gradients):
            ends.append(number)
            held_bytes = 0
    return tuple(ends)


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
