"""Which positions of an epoch a rank loads: global batches, dealt out like cards.

Global batch b holds the positions from start + b * batch_size * world_size on; rank r takes r, r + world_size, ... of
them. The union over ranks is the same whatever the world size, so a resume may change it. What becomes of the last,
incomplete batch:

    drop    left out; its samples come in other epochs
    pad     filled up to full size with the first positions of the epoch, so that shapes never change
    exact   every position once; ranks get uneven shares, some perhaps a batch less. For evaluation; ranks that meet in
            a collective each step would wait for ever
    even    every position once, and as many batches on every rank: for training on all samples. A rest of fewer than
            two samples a rank shares the samples of the batch before it, so that no batch is larger than asked for
            and none too small for a batch norm. Where nothing can be shared (batches of one sample, or a resume just
            before the end) and a rank would go without, it repeats a sample of that batch
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from topout.epoch.order import Int64s
from topout.epoch.whole_number import whole
from topout.schema.errors import TopoutError

LAST = ("drop", "pad", "exact", "even")


@dataclass(frozen=True, kw_only=True)
class Partition:
    """The batches of one rank in the rest of an epoch."""

    num_positions: int
    batch_size: int
    rank: int = 0
    world_size: int = 1
    last: str = "drop"
    start: int = 0
    """Positions before this one were loaded already."""

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise TopoutError(
                f"The batch size is {self.batch_size}.", why="A batch has at least one sample.", do="pass 1 or more"
            )
        if not 0 <= self.rank < self.world_size:
            raise TopoutError(
                f"Rank {self.rank} of {self.world_size} does not exist.",
                why="Ranks count from 0 to world_size - 1.",
                do="leave both out to take them from RANK and WORLD_SIZE",
            )
        if self.last not in LAST:
            raise TopoutError(
                f"There is no policy {self.last!r} for the last batch.",
                why="It decides what becomes of samples that do not fill a batch.",
                do=f"one of {', '.join(LAST)}",
            )

    @property
    def global_batch(self) -> int:
        return self.batch_size * self.world_size

    @property
    def num_left(self) -> int:
        return max(0, self.num_positions - self.start)

    def __len__(self) -> int:
        full, rest = divmod(self.num_left, self.global_batch)
        if self.last == "drop" or not rest:
            return full
        return full + (self.last != "exact" or self.rank < rest)

    def batch(self, number: int) -> Int64s:
        """Positions of batch `number` from `start`; with `pad` they run past the end, to be taken modulo its size."""
        first, end = self._bounds(number)
        if self.last == "even" and end - first < self.world_size:
            return np.array([first + self.rank % (end - first)], dtype=np.int64)
        return np.arange(first + self.rank, end, self.world_size, dtype=np.int64)

    def sharers(self, number: int) -> tuple[int, int]:
        """This rank is the i-th of k that load the same positions: (0, 1), but for batches smaller than the world."""
        first, end = self._bounds(number)
        size = end - first
        if self.last != "even" or size >= self.world_size:
            return 0, 1
        return self.rank // size, len(range(self.rank % size, self.world_size, size))

    def position_after(self, num_batches: int) -> int:
        """How far all ranks together are once each has taken so many batches; never past the end."""
        if self.last == "even" and 0 < num_batches <= len(self):
            return self._bounds(num_batches - 1)[1]
        return min(self.start + num_batches * self.global_batch, max(self.start, self.num_positions))

    def _bounds(self, number: int) -> tuple[int, int]:
        """First position of a global batch, and the one after its last."""
        first = self.start + number * self.global_batch
        end = first + self.global_batch
        if self.last == "pad":
            return first, end
        full, rest = divmod(self.num_left, self.global_batch)
        if self.last == "even" and full and self._is_scanty(rest):
            # the last two together, in halves; the first a multiple of the world, so that its ranks are equal
            middle = self.num_positions - rest - self.global_batch
            middle += (self.global_batch + rest) // (2 * self.world_size) * self.world_size
            if number == full - 1:
                end = middle
            elif number == full:
                first = middle
        return first, min(end, self.num_positions)

    def _is_scanty(self, rest: int) -> bool:
        """Too small a batch for all ranks, with a batch before it that can give some of its own."""
        if self.batch_size == 1:
            return False
        # halves of two and two samples would be no better off with two a rank
        return 0 < rest < self.world_size * (2 if self.batch_size > 2 else 1)


def rank_and_world(environment: Mapping[str, str], rank: int | None, world_size: int | None) -> tuple[int, int]:
    """As given, else as torch's process group says where there is one, else as the launcher says."""
    if (rank is None) != (world_size is None):
        raise TopoutError(
            "Only one of rank and world_size was given.", why="One means nothing without the other.", do="pass both"
        )
    if rank is not None and world_size is not None:
        return whole("rank", rank, least=0), whole("world_size", world_size)
    joined = _process_group()
    if joined is not None:
        return joined
    if "RANK" not in environment or "WORLD_SIZE" not in environment:
        return 0, 1
    try:
        return int(environment["RANK"]), int(environment["WORLD_SIZE"])
    except ValueError as error:
        raise TopoutError(
            f"RANK={environment['RANK']!r}, WORLD_SIZE={environment['WORLD_SIZE']!r} are no numbers.",
            why="They say which share of the samples this process loads.",
            do="unset them, or pass rank= and world_size=",
        ) from error


def _process_group() -> tuple[int, int] | None:
    """Rank and size of the default group, where the script has joined one; torch is not loaded to find out."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return int(distributed.get_rank()), int(distributed.get_world_size())
