"""Several packs in given proportions, still a pure function of (seed, epoch, position).

After any number of whole blocks each pack has given its weight's share of the samples, to within one sample; inside a
block they are shuffled. A pack goes through all of its samples, newly shuffled each time, before any comes again, also
across epochs: small packs repeat within an epoch, large ones go on in the next where they stopped. Not for packs that
should simply be joined: without weights a loader shuffles all of them as one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from topout.epoch.order import Int64s, permute
from topout.epoch.randomness import MASK, MIXTURE, G, finalise, key
from topout.schema.errors import TopoutError

BLOCK = 256
_UNITS = 2**20
"""Weights are kept as whole numbers of this many parts, so that shares never drift with rounding."""
_SHIFT_20 = np.uint64(20)


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """An order over packs laid end to end: sample numbers of pack k begin at the sum of the sizes before it."""

    seed: int
    epoch: int
    sizes: Sequence[int]
    weights: Sequence[float]
    length: int | None = None
    """Positions of an epoch; the number of all samples unless given."""

    def __post_init__(self) -> None:
        try:
            weights = [float(weight) for weight in self.weights]
        except (TypeError, ValueError):
            weights = []
        is_usable = len(weights) == len(self.sizes) and all(0 <= weight < float("inf") for weight in weights)
        if not is_usable or sum(weights) <= 0:
            raise TopoutError(
                f"These weights cannot mix {len(self.sizes)} packs: {self.weights!r}",
                why="Each pack needs one weight, none negative, not all zero.",
                do="for example weights=[0.7, 0.3] for two packs",
            )
        if any(weight > 0 and size == 0 for weight, size in zip(weights, self.sizes, strict=True)):
            raise TopoutError(
                "A pack with a weight is empty.", why="Nothing can be drawn from it.", do="leave it out or weigh it 0"
            )

    @property
    def num_positions(self) -> int:
        return sum(self.sizes) if self.length is None else self.length

    def at(self, positions: Int64s) -> Int64s:
        places = self._places(np.asarray(positions, dtype=np.int64))
        block = places // BLOCK
        mixture_key = key(self.seed, 0, MIXTURE)
        block_keys = finalise(block.astype(np.uint64) + np.uint64((mixture_key + G) & MASK))
        slot = permute(places - block * BLOCK, BLOCK, block_keys)
        # a block's slots are its packs' shares end to end
        before, after = self._given(block * BLOCK), self._given((block + 1) * BLOCK)
        ends = np.cumsum(after - before, axis=0)
        pack = (slot[None, :] >= ends).sum(axis=0)
        columns = np.arange(len(slot))
        first_slot = np.concatenate([np.zeros((1, len(slot)), dtype=np.int64), ends])[pack, columns]
        return self._samples(pack, before[pack, columns] + slot - first_slot)

    def _places(self, positions: Int64s) -> Int64s:
        """Positions counted from the first epoch on."""
        return positions + self.epoch * self.num_positions

    def _given(self, num_places: Int64s) -> Int64s:
        """How many samples each pack has given after so many places, (packs, places)."""
        products = self._cumulated[:, None] * num_places.astype(np.uint64)[None, :]
        totals = (products >> _SHIFT_20).astype(np.int64)
        return np.diff(totals, axis=0, prepend=0)

    @cached_property
    def _cumulated(self) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
        shares = np.cumsum(np.asarray(self.weights, dtype=np.float64)) / float(sum(self.weights))
        units = np.rint(shares * _UNITS)
        units[shares >= shares[-1]] = _UNITS
        return units.astype(np.uint64)

    def _samples(self, pack: Int64s, ordinal: Int64s) -> Int64s:
        sizes = np.asarray(self.sizes, dtype=np.int64)
        first_sample = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        turn, within = np.divmod(ordinal, sizes[pack])
        turn_keys = finalise(
            turn.astype(np.uint64) * np.uint64(G) + (pack + 1).astype(np.uint64) + np.uint64(key(self.seed, 1, MIXTURE))
        )
        return np.asarray(first_sample[pack] + permute(within, sizes[pack], turn_keys), dtype=np.int64)
