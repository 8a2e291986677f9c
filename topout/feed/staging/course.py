"""What the ranks of one node will read, and when: the global order seen from the node.

Time is counted in positions of the whole job: `epoch * num_positions + position`. It is the same on every rank, so the
ranks of a node can be compared by it. `ListingCourse` stands in where the order is not known.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from topout.epoch.order import Int64s, Order
from topout.epoch.partition import Partition

_LOOKAHEAD = 1 << 14
_LOOKAHEAD_BATCHES = 64
_PART = 1 << 16


class Course(Protocol):
    """A node's future."""

    @property
    def key(self) -> str:
        """Names the course; readers with the same key follow the same one."""

    @property
    def margin(self) -> int:
        """What is to be read within this time of now comes too late to be staged."""

    @property
    def turns_at_once(self) -> int:
        """What this node reads together: its share of a batch."""

    @property
    def lookahead(self) -> int:
        """How far ahead of now it is worth fetching."""

    def horizon(self, start_time: int, max_turns: int) -> tuple[Int64s, Int64s]:
        """Times from `start_time` on at which this node reads, and the samples it reads; at least one turn."""

    def epoch_end(self, time: int) -> int:
        """The first time after the epoch in which `time` lies."""


@dataclass(frozen=True, kw_only=True)
class EpochCourse:
    """Epoch after epoch through a known order, dealt out to the ranks as `Partition` does it."""

    name: str
    """Says which order this is: seed and options; whoever has the same name must have the same order."""
    order_of: Callable[[int], Order]
    """The order of an epoch; all epochs are equally long."""
    num_positions: int
    batch_size: int
    world_size: int = 1
    ranks: tuple[int, ...] = (0,)
    """The ranks of this node."""
    last: str = "drop"
    start_epoch: int = 0
    start_position: int = 0
    """Where the job began or went on: batches are counted from here in that epoch."""
    batches_at_once: int = 1
    """Batches that a rank may be reading at a time, since its loader works ahead."""
    first_sample: int = 0
    num_samples: int | None = None
    """This pack's stretch of the order's sample numbers, where the order mixes several packs."""

    @property
    def key(self) -> str:
        said = [self.name, self.num_positions, self.batch_size, self.world_size, self.ranks, self.last]
        where = [self.start_epoch, self.start_position, self.first_sample, self.num_samples]
        return hashlib.sha256(json.dumps([said, where]).encode()).hexdigest()[:16]

    @property
    def margin(self) -> int:
        return self.batch_size * self.world_size * self.batches_at_once

    @property
    def turns_at_once(self) -> int:
        return self.batch_size * len(self.ranks) * self.batches_at_once

    @property
    def lookahead(self) -> int:
        return min(max(_LOOKAHEAD_BATCHES * self.margin, _LOOKAHEAD), self.num_positions)

    def time(self, epoch: int, position: int) -> int:
        return epoch * self.num_positions + position

    @property
    def start_time(self) -> int:
        return self.time(self.start_epoch, self.start_position)

    def epoch_end(self, time: int) -> int:
        return (time // self.num_positions + 1) * self.num_positions

    def horizon(self, start_time: int, max_turns: int) -> tuple[Int64s, Int64s]:
        times, samples, num_turns = [], [], 0
        in_sight = self.epoch_end(self.epoch_end(start_time))
        # a node that reads a share of each epoch meets a sample again after several: look as many turns ahead as one
        # node alone would, two epochs' worth
        while num_turns < max_turns and (start_time < in_sight or num_turns < 2 * self.num_positions):
            epoch, first = divmod(start_time, self.num_positions)
            positions, numbers = self._turns(epoch, first, max_turns)
            times.append(epoch * self.num_positions + positions)
            samples.append(numbers)
            num_turns += len(positions)
            if start_time >= in_sight and not len(positions):
                break
            start_time = self.epoch_end(start_time)
        return np.concatenate(times)[:max_turns], np.concatenate(samples)[:max_turns]

    def _turns(self, epoch: int, first: int, max_turns: int) -> tuple[Int64s, Int64s]:
        """This node's positions of an epoch from `first` on, no more than about `max_turns`, and their samples."""
        start = self.start_position if epoch == self.start_epoch else 0
        partition = Partition(
            num_positions=self.num_positions,
            batch_size=self.batch_size,
            world_size=self.world_size,
            last=self.last,
            start=start,
        )
        # those that `pad` reads again at the end are few: they are left to the readers
        end = partition.position_after(len(partition))
        widest = (max_turns // len(self.ranks) + 1) * self.world_size
        first = max(first, start)
        positions = np.arange(first, max(first, min(end, first + widest)), dtype=np.int64)
        if len(self.ranks) < self.world_size:
            positions = positions[np.isin((positions - start) % self.world_size, self.ranks)]
        # in parts: an order needs room for a dozen numbers a position while it computes
        order = self.order_of(epoch)
        parts = np.array_split(positions, len(positions) // _PART + 1)
        numbers = np.concatenate([np.asarray(order.at(part), dtype=np.int64) for part in parts]) - self.first_sample
        if self.num_samples is None:
            return positions, numbers
        is_ours = (numbers >= 0) & (numbers < self.num_samples)
        return positions[is_ours], numbers[is_ours]


@dataclass(frozen=True, kw_only=True)
class ListingCourse:
    """The samples as they are listed, again and again: what is staged when nobody says what is read next."""

    num_samples: int
    margin: int = 0
    turns_at_once: int = 1
    start_time: int = 0

    @property
    def key(self) -> str:
        return f"listing-{self.num_samples}"

    @property
    def lookahead(self) -> int:
        return self.num_samples

    def epoch_end(self, time: int) -> int:
        return (time // self.num_samples + 1) * self.num_samples

    def horizon(self, start_time: int, max_turns: int) -> tuple[Int64s, Int64s]:
        end = min(self.epoch_end(self.epoch_end(start_time)), start_time + max_turns)
        times = np.arange(start_time, end, dtype=np.int64)
        return times, times % self.num_samples
