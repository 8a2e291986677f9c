"""What a DataLoader is to fetch on this rank: numbers of samples, batch after batch.

With workers, each batch carries the seed of its own random numbers and sets it in the worker where it arrives: an
augmentation is then the same whichever worker makes it, and again after a resume. Without workers the script's own
random numbers are used, which a checkpoint keeps. Not for iterable data sets, which are not asked for numbers.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import get_worker_info

from topout.epoch.partition import Partition
from topout.epoch.randomness import G, finalise_one, key
from topout.train.sample_order import SampleOrder, seed_all

CHUNK = 8192
"""Positions looked up at a time: one batch alone would pay numpy's price for each of some sixty small operations."""
WORKER = 128
"""Number of the draw that seeds a worker of rank 0, with the key of its first position; rank r's is r further on."""


@dataclass
class EpochPlan:
    """One pass of one rank. `are_units`: a position stands for a whole batch, as the script's own sampler made it."""

    order: SampleOrder
    partition: Partition
    seed: int
    epoch: int
    are_units: bool
    was_asked: bool = False

    def batches(self) -> Iterator[tuple[int, Any]]:
        """The first position of each batch, and what to fetch."""
        first, per_chunk = 0, 1
        while first < len(self.partition):
            numbers = range(first, min(first + per_chunk, len(self.partition)))
            batches = [self.partition.batch(number) for number in numbers]
            samples = self.order.at(np.concatenate(batches))
            start = 0
            for number, positions in zip(numbers, batches, strict=True):
                some = samples[start : start + len(positions)]
                start += len(positions)
                yield int(positions[0]), self._part(number, some[0]) if self.are_units else some
            first, per_chunk = numbers.stop, max(1, CHUNK // self.partition.batch_size)

    def _part(self, number: int, unit: Any) -> Any:
        """Ranks that were given the same batch at the end of an epoch divide it, where it can be divided."""
        turn, num_sharers = self.partition.sharers(number)
        if isinstance(unit, list) and 1 < num_sharers <= len(unit):
            return unit[turn::num_sharers]
        return unit


class Batches:
    """The index sampler of a loader. Torch asks for an iterator twice when workers start: asking changes nothing."""

    def __init__(self, num_batches: Callable[[], int], is_seeded: bool) -> None:
        self.plan: EpochPlan | None = None
        self._num_batches = num_batches
        self._is_seeded = is_seeded

    def __len__(self) -> int:
        return self._num_batches()

    def __iter__(self) -> Iterator[Any]:
        if self.plan is None:
            return iter(())
        self.plan.was_asked = True
        return self._fetches(self.plan)

    def _fetches(self, plan: EpochPlan) -> Iterator[Any]:
        if not self._is_seeded:
            yield from (wanted for _, wanted in plan.batches())
            return
        for position, wanted in plan.batches():
            position_key = key(plan.seed, plan.epoch, position)
            # ranks may load the same positions at the end of an epoch, not with the same draws
            yield Seeded(wanted, finalise_one(position_key + (WORKER + plan.partition.rank) * G))


class Seeded:
    """A batch's numbers on their way to a worker: unpickled there, they are themselves again, and the worker seeded."""

    def __init__(self, wanted: Any, seed: int) -> None:
        self.wanted = wanted
        self.seed = seed

    def __reduce__(self) -> tuple[Callable[[Any, int], Any], tuple[Any, int]]:
        return _arrive, (self.wanted, self.seed)


def _arrive(wanted: Any, seed: int) -> Any:
    if get_worker_info() is not None:
        seed_all(seed)
    return wanted
