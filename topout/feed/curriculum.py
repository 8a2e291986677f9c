"""Easy samples first: an order sorted by a column of the index, loosened epoch by epoch into a plain shuffle.

In epoch e, samples are shuffled within blocks of the share e / pace of the sorted data set; from epoch `pace` on the
whole is one block. Every sample still comes exactly once an epoch, so resume and partition hold as ever. Not O(1): the
sorted numbers of all samples are kept, 8 bytes each.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from topout.epoch.order import Int64s, permute
from topout.epoch.randomness import MASK, ORDER, G, finalise, key
from topout.schema.errors import TopoutError


@dataclass(frozen=True, kw_only=True)
class Curriculum:
    """`ranking` holds the samples from the easiest to the hardest; see `easiest_first`."""

    seed: int
    epoch: int
    ranking: Int64s
    pace: float
    """Epochs until the order is a plain shuffle; at least 1."""

    def __post_init__(self) -> None:
        if not (isinstance(self.pace, (int, float)) and self.pace >= 1):
            raise TopoutError(
                f"A curriculum of pace {self.pace!r} has no easy part.",
                why="The pace is the number of epochs until all samples are shuffled as one.",
                do="pass 1 or more, or leave the curriculum out",
            )

    @property
    def num_positions(self) -> int:
        return len(self.ranking)

    @property
    def block(self) -> int:
        """Neighbours in difficulty that are shuffled together; 1 is strictly sorted."""
        num = self.num_positions
        return max(1, min(num, round(num * self.epoch / self.pace)))

    def at(self, positions: Int64s) -> Int64s:
        places = np.asarray(positions, dtype=np.int64)
        first = places - places % self.block
        sizes = np.minimum(self.block, self.num_positions - first)
        epoch_key = key(self.seed, self.epoch, ORDER)
        block_keys = finalise(first.astype(np.uint64) + np.uint64((epoch_key + G) & MASK))
        return np.asarray(self.ranking[first + permute(places - first, sizes, block_keys)])


def easiest_first(column: npt.NDArray[np.generic], *, highest_first: bool = False) -> Int64s:
    """Sample numbers by ascending value; equal ones as they are stored. NaN counts as hardest."""
    values = column.astype(np.float64)
    if highest_first:
        values = -values
    return np.argsort(values, kind="stable").astype(np.int64)
