"""Which gradients travel together, decided once from the order in which they became ready.

A group collects what becomes ready within one cycle, and at least `SMALLEST_BYTES`, and at most the threshold: what
Horovod's background thread does every cycle, done once and kept, so that ranks need not negotiate at every step.
Gradients that did not come at all make groups of their own at the end: no other group waits for them.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

SMALLEST_BYTES = 1 << 20
"""Below this a collective costs its latency, so waiting for the next gradient is cheaper than another collective."""
DEFAULT_THRESHOLD_BYTES = 128 << 20
DEFAULT_CYCLE_MS = 1.0


@dataclass(frozen=True, kw_only=True)
class FusionLimits:
    """`threshold_bytes` 0 fuses nothing."""

    threshold_bytes: int = DEFAULT_THRESHOLD_BYTES
    cycle_ms: float = DEFAULT_CYCLE_MS


@dataclass(frozen=True)
class TensorFacts:
    """What groups are made by: only tensors of one kind lie in one buffer."""

    num_bytes: int
    kind: str
    """Type and device."""


def limits_from(environment: Mapping[str, str] = os.environ) -> FusionLimits:
    """HOROVOD_FUSION_THRESHOLD in bytes, HOROVOD_CYCLE_TIME in ms; what is no number counts as not set."""
    return FusionLimits(
        threshold_bytes=int(_number(environment.get("HOROVOD_FUSION_THRESHOLD"), DEFAULT_THRESHOLD_BYTES)),
        cycle_ms=_number(environment.get("HOROVOD_CYCLE_TIME"), DEFAULT_CYCLE_MS),
    )


def _number(text: str | None, default: float) -> float:
    try:
        return max(0.0, float(text)) if text else default
    except ValueError:
        return default


def group_tensors(facts: Sequence[TensorFacts], ready_ns: Mapping[int, int], limits: FusionLimits) -> list[list[int]]:
    """Numbers of tensors in groups, in the order in which the groups are complete; `ready_ns` in order of time."""
    seen = list(ready_ns)
    unseen = [number for number in range(len(facts)) if number not in ready_ns]
    return _groups(facts, seen, ready_ns, limits) + _groups(facts, unseen, {}, limits)


def _groups(
    facts: Sequence[TensorFacts], order: Sequence[int], ready_ns: Mapping[int, int], limits: FusionLimits
) -> list[list[int]]:
    complete: list[list[int]] = []
    opened: dict[str, list[int]] = {}
    for number in order:
        kind = facts[number].kind
        group = opened.setdefault(kind, [])
        if group and not _joins(facts, group, number, ready_ns, limits):
            complete.append(opened[kind])
            group = opened[kind] = []
        group.append(number)
    # by the last of each, since that one completes it
    places = {number: place for place, number in enumerate(order)}
    return sorted([*complete, *opened.values()], key=lambda group: places[group[-1]])


def _joins(
    facts: Sequence[TensorFacts], group: Sequence[int], number: int, ready_ns: Mapping[int, int], limits: FusionLimits
) -> bool:
    num_bytes = sum(facts[member].num_bytes for member in group)
    if num_bytes + facts[number].num_bytes > limits.threshold_bytes:
        return False
    if num_bytes < SMALLEST_BYTES or number not in ready_ns:
        return True
    return ready_ns[number] - ready_ns[group[0]] <= limits.cycle_ms * 1e6


def split_evenly(numbers: Sequence[int], num_groups: int) -> list[list[int]]:
    """So many groups of neighbours, none empty, the earlier ones larger by one where it does not divide."""
    num_groups = min(num_groups, len(numbers))
    size, larger = divmod(len(numbers), max(1, num_groups))
    starts = [number * size + min(number, larger) for number in range(num_groups + 1)]
    return [list(numbers[start:stop]) for start, stop in pairwise(starts)]


def separate_kinds(facts: Sequence[TensorFacts], groups: Sequence[Sequence[int]]) -> list[list[int]]:
    """The same groups, those of several kinds divided."""
    divided: list[list[int]] = []
    for group in groups:
        kinds: dict[str, list[int]] = {}
        for number in group:
            kinds.setdefault(facts[number].kind, []).append(number)
        divided += kinds.values()
    return divided
