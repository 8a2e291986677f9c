"""The order of an epoch as a pure function of (seed, epoch, position): no list, no state, any position at once.

    sample = permute(position), a Feistel network over Z_a x Z_b with a * b just above the number of samples

Each round adds a hash of one half to the other, modulo its size, which is a bijection whatever the hash is; results
outside the data set go through again (cycle walking), about one in sqrt(n) of them. Memory and seek are O(1), so every
rank and every stager knows who needs which sample when. Not for choosing one of all n! orders with equal probability:
it is indistinguishable from that only as far as training looks.
Reference: Black and Rogaway, Ciphers with Arbitrary Finite Domains, 2002.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from topout.epoch.randomness import MASK, ORDER, G, Uint64s, finalise, key

Int64s = npt.NDArray[np.int64]

ROUNDS = 6
LARGEST = 2**48
"""Samples of one order; halves then fit the 32-bit arithmetic with room to spare."""
_SHIFT_32 = np.uint64(32)
_ODD = np.uint64(0xD1342543DE82EF95)


class Order(Protocol):
    """What an epoch looks like: position -> sample number."""

    @property
    def num_positions(self) -> int: ...

    def at(self, positions: Int64s) -> Int64s: ...


@dataclass(frozen=True, kw_only=True)
class Sequential:
    """Samples as they are stored."""

    num_positions: int

    def at(self, positions: Int64s) -> Int64s:
        return np.asarray(positions, dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class Shuffled:
    """A permutation of all samples, another one for each seed and epoch."""

    seed: int
    epoch: int
    num_positions: int

    def at(self, positions: Int64s) -> Int64s:
        return permute(positions, self.num_positions, key(self.seed, self.epoch, ORDER))


@dataclass(frozen=True, kw_only=True)
class BlockShuffled:
    """Shards in random order, samples shuffled within windows of some shards: for storage that must read in order.

    Not as good as `Shuffled` for training: samples of one shard stay near each other. `starts` are the numbers of the
    shards' first samples, with the number of all samples at the end.
    """

    seed: int
    epoch: int
    starts: Sequence[int]
    window: int

    @property
    def num_positions(self) -> int:
        return int(self.starts[-1])

    def at(self, positions: Int64s) -> Int64s:
        starts = np.asarray(self.starts, dtype=np.int64)
        num_shards = len(starts) - 1
        epoch_key = key(self.seed, self.epoch, ORDER)
        shards = permute(np.arange(num_shards, dtype=np.int64), num_shards, epoch_key)
        # where each shard begins in the shuffled sequence of shards, and each window of them
        begins = np.concatenate([[0], np.cumsum(np.diff(starts)[shards])])
        window_begins = np.append(begins[:-1][:: self.window], begins[-1])
        window = np.searchsorted(window_begins, positions, side="right") - 1
        begin, size = window_begins[window], np.diff(window_begins)[window]
        window_keys = finalise(window.astype(np.uint64) + np.uint64((epoch_key + G) & MASK))
        moved = begin + permute(np.asarray(positions, dtype=np.int64) - begin, size, window_keys)
        place = np.searchsorted(begins, moved, side="right") - 1
        return np.asarray(starts[shards[place]] + moved - begins[place], dtype=np.int64)


def order(seed: int, epoch: int, num_samples: int) -> Shuffled:
    """The global order of an epoch."""
    return Shuffled(seed=seed, epoch=epoch, num_positions=num_samples)


def permute(values: npt.ArrayLike, sizes: int | Int64s, keys: int | Uint64s) -> Int64s:
    """Each value of [0, size) to another of [0, size), one to one for each key. Arguments broadcast."""
    current = np.atleast_1d(np.asarray(values)).astype(np.uint64)
    if current.size == 0:
        return current.astype(np.int64)
    num = np.asarray(sizes, dtype=np.uint64)
    key_array = np.asarray(keys, dtype=np.uint64)
    if int(num.max()) > LARGEST:
        raise ValueError(f"an order has at most {LARGEST} samples")
    halves = _halves(num)
    current = _rounds(current, halves, key_array)
    outside = current >= num
    while outside.any():
        where = np.flatnonzero(outside)
        again = _rounds(current[where], tuple(_some(half, where) for half in halves), _some(key_array, where))
        current[where] = again
        outside[where] = again >= _some(num, where)
    return current.astype(np.int64)


def _some(array: Uint64s, where: npt.NDArray[np.intp]) -> Uint64s:
    return array[where] if array.ndim else array


def _halves(num: Uint64s) -> tuple[Uint64s, Uint64s]:
    left = np.ceil(np.sqrt(num.astype(np.float64))).astype(np.uint64)
    return left, (num + left - np.uint64(1)) // left


def _rounds(values: Uint64s, halves: tuple[Uint64s, ...], keys: Uint64s) -> Uint64s:
    sizes = halves
    right, left = values // sizes[0], values % sizes[0]
    for number in range(ROUNDS):
        round_keys = finalise(np.atleast_1d(keys) + np.uint64((number + 1) * G & MASK))
        if number % 2 == 0:
            left = _added(left, right, sizes[0], round_keys)
        else:
            right = _added(right, left, sizes[1], round_keys)
    return right * sizes[0] + left


def _added(half: Uint64s, other: Uint64s, size: Uint64s, round_keys: Uint64s) -> Uint64s:
    """half + hash(other), modulo size; the hash is scaled to the size, which avoids a division."""
    amount = finalise(other * _ODD + round_keys)
    amount >>= _SHIFT_32
    amount *= size
    amount >>= _SHIFT_32
    amount += half
    return np.where(amount >= size, amount - size, amount)
