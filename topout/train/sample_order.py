"""The order in which a torch sampler's samples are dealt out: the same on every rank, and again after a restart.

Torch's own shufflers become a function of (seed, epoch, position), with no list in memory. Any other sampler is run
once an epoch under seeded random numbers, and what it gives is kept as a list; those of the script are put back as
they were. Not for samplers without an end.
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import DistributedSampler, RandomSampler, SequentialSampler, SubsetRandomSampler

from topout.epoch.order import Int64s, Shuffled
from topout.epoch.randomness import G, finalise_one, key
from topout.packs.checksum import crc32c
from topout.schema.errors import TopoutError

SAMPLER = 2**63 + 16
"""The position whose key seeds a sampler that draws for itself."""


class SampleOrder(Protocol):
    """One epoch: position -> what the data set is asked for."""

    @property
    def num_positions(self) -> int: ...

    @property
    def fingerprint(self) -> int | None:
        """Tells this order from another; None where seed and epoch say everything."""

    def at(self, positions: Int64s) -> list[Any]: ...


@dataclass(frozen=True)
class AsStored:
    num_positions: int
    fingerprint: int | None = None

    def at(self, positions: Int64s) -> list[Any]:
        return positions.tolist()  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Permuted:
    """`num_positions` of the numbers below `num_samples`: all of them before any comes again, as RandomSampler does."""

    seed: int
    epoch: int
    num_samples: int
    num_positions: int
    indices: Sequence[Any] | None = None
    fingerprint: int | None = None

    def at(self, positions: Int64s) -> list[Any]:
        rounds = -(-self.num_positions // self.num_samples)
        turns = positions // self.num_samples
        samples = np.empty(len(positions), dtype=np.int64)
        for turn in np.unique(turns).tolist():
            shuffled = Shuffled(seed=self.seed, epoch=self.epoch * rounds + turn, num_positions=self.num_samples)
            samples[turns == turn] = shuffled.at(positions[turns == turn] % self.num_samples)
        numbers: list[Any] = samples.tolist()
        return numbers if self.indices is None else [self.indices[number] for number in numbers]


@dataclass(frozen=True)
class Drawn:
    """What a sampler gave: sample numbers, or whole batches of them."""

    values: Sequence[Any]
    fingerprint: int | None

    @property
    def num_positions(self) -> int:
        return len(self.values)

    def at(self, positions: Int64s) -> list[Any]:
        return [self.values[position] for position in positions.tolist()]


def order_of(sampler: Any, seed: int, epoch: int) -> SampleOrder:
    """The epoch's order. Subclasses of torch's samplers are run, for they may do anything."""
    kind = type(sampler)
    if kind is SequentialSampler:
        return AsStored(len(sampler))
    if kind is DistributedSampler:
        num = len(sampler.dataset)
        return Permuted(seed, epoch, num, num) if sampler.shuffle else AsStored(num)
    if kind is RandomSampler and not sampler.replacement and len(sampler.data_source):
        return Permuted(seed, epoch, len(sampler.data_source), len(sampler))
    if kind is SubsetRandomSampler and len(sampler):
        return Permuted(seed, epoch, len(sampler), len(sampler), sampler.indices, fingerprint(sampler.indices))
    values = drawn(sampler, seed, epoch)
    return Drawn(values, fingerprint(values))


def is_own(sampler: Any) -> bool:
    """Whether it is the script's code: it may fail on one rank alone, and have another length in each epoch."""
    return not type(sampler).__module__.startswith("torch.")


def length_of(sampler: Any) -> int:
    """How many positions an epoch has, without running the sampler."""
    return len(sampler.dataset) if type(sampler) is DistributedSampler else _stated_length(sampler)


def drawn(sampler: Any, seed: int, epoch: int) -> list[Any]:
    if hasattr(sampler, "set_epoch"):
        # its length may be another one then
        sampler.set_epoch(epoch)
    length = _stated_length(sampler)
    with seeded(key(seed, epoch, SAMPLER), getattr(sampler, "generator", None)):
        values = list(islice(sampler, length + 1))
    if len(values) != length:
        gives = "more" if len(values) > length else f"{len(values)}"
        raise TopoutError(
            f"The sampler {type(sampler).__name__} has length {length} and gives {gives}.",
            why="Ranks that believe its length would not take equally many batches and wait for each other for ever.",
            do="correct its __len__; a sampler without an end cannot be dealt out",
        )
    return values


def fingerprint(values: Sequence[Any]) -> int:
    try:
        numbers = np.asarray(values)
    except ValueError:  # batches of uneven length
        numbers = np.empty(0, dtype=object)
    if numbers.dtype.kind in "iu" and len(numbers) == len(values):
        return crc32c(numbers.astype("<i8").tobytes())
    return crc32c(repr([_plain(value) for value in values]).encode())


@contextmanager
def seeded(seed: int, generator: Any = None) -> Iterator[None]:
    """Draws of torch, numpy and random on the host begin at this seed; afterwards all go on where they were."""
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    own = generator.get_state() if isinstance(generator, torch.Generator) else None
    seed_all(seed)
    if own is not None:
        generator.manual_seed(seed >> 1)
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        np.random.set_state(before[1])
        random.setstate(before[2])
        if own is not None:
            generator.set_state(own)


def seed_all(seed: int) -> None:
    """The host's generators. Not torch.manual_seed, which also notes a seed for each GPU: 0.1 ms in every worker."""
    torch.default_generator.manual_seed(seed >> 1)
    seed_host(seed)


def seed_host(seed: int) -> None:
    """Python's and NumPy's."""
    random.seed(seed)
    # numpy's is the same algorithm as random's: of the same seed it would draw the same numbers
    numpy_seed = finalise_one(seed + G)
    np.random.seed([numpy_seed & 0xFFFFFFFF, numpy_seed >> 32])


def _stated_length(sampler: Any) -> int:
    try:
        return len(sampler)
    except TypeError as error:
        raise TopoutError(
            f"The sampler {type(sampler).__name__} has no length.",
            why="Its samples are dealt out to ranks, which must take equally many.",
            do="give it __len__; for a stream without an end make a loader for each rank and pass own_share=True",
        ) from error


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value
