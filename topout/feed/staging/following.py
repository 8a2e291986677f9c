"""Keeps the staging of a loader's packs in step with the loader.

    following = Following(packs, StagingOptions(...), order_of=..., name=..., batches_at_once=prefetch + 1)
    following.begin(epoch, partition)        at the start of each iteration
    following.passed(epoch, position)        after each batch: everything before it was read by this rank

Epochs that follow one another go on with the same course; a jump (another epoch, a resume) starts another. Packs that
are not staged are passed over. Not for samplers of others: with those call `StagedPack.follow()` without a course.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from topout.epoch.order import Order
from topout.epoch.partition import Partition
from topout.feed.staging.course import EpochCourse
from topout.feed.staging.staged_pack import StagedPack
from topout.feed.staging.stager import StagingOptions
from topout.packs.pack import Pack


class Following:
    """One for each loader; `packs` in the order in which their samples are numbered."""

    def __init__(
        self,
        packs: Sequence[Pack],
        options: StagingOptions | None = None,
        *,
        order_of: Callable[[int], Order],
        name: str,
        batches_at_once: int = 4,
    ) -> None:
        self._packs = [(pack, first) for pack, first in _numbered(packs) if isinstance(pack, StagedPack)]
        self._options = options
        self._order_of = order_of
        self._name = name
        self._batches_at_once = batches_at_once
        self._expected: tuple[int, int, Partition] | None = None
        self._num_positions = 0

    def begin(self, epoch: int, partition: Partition) -> None:
        """An iteration from `partition.start` of this epoch on begins."""
        self._num_positions = partition.num_positions
        if self._expected != (epoch, partition.start, partition):
            self._start(epoch, partition)
        self._expected = (epoch + 1, 0, replace(partition, start=0))
        self.passed(epoch, partition.start)

    def passed(self, epoch: int, position: int) -> None:
        for pack, _ in self._packs:
            pack.advance(epoch * self._num_positions + position)

    def close(self) -> None:
        for pack, _ in self._packs:
            pack.leave()

    def _start(self, epoch: int, partition: Partition) -> None:
        ranks = ranks_of_node(partition.rank, partition.world_size, os.environ)
        for pack, first in self._packs:
            course = EpochCourse(
                name=self._name,
                order_of=self._order_of,
                num_positions=partition.num_positions,
                batch_size=partition.batch_size,
                world_size=partition.world_size,
                ranks=ranks,
                last=partition.last,
                start_epoch=epoch,
                start_position=partition.start,
                batches_at_once=self._batches_at_once,
                first_sample=first,
                num_samples=len(pack),
            )
            pack.follow(course, self._options, rank=partition.rank)


def ranks_of_node(rank: int, world_size: int, environment: Mapping[str, str]) -> tuple[int, ...]:
    """The ranks beside this one, as launchers number them: one node after the other; only this one when nobody says."""
    try:
        first = rank - int(environment["LOCAL_RANK"])
        ranks = tuple(range(first, first + int(environment["LOCAL_WORLD_SIZE"])))
    except (KeyError, ValueError):
        return (rank,)
    is_plausible = rank in ranks and ranks[0] >= 0 and ranks[-1] < world_size
    return ranks if is_plausible else (rank,)


def _numbered(packs: Sequence[Pack]) -> list[tuple[Pack, int]]:
    first, numbered = 0, []
    for pack in packs:
        numbered.append((pack, first))
        first += len(pack)
    return numbered
