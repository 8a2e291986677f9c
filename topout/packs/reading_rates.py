"""How fast a pack is read on this machine, as it lies: raw, verified in order, verified at random, gathered.

What is in the page cache is read from there, so the first figure is also how cold the files were. Not a benchmark of
training: decoding costs more than all of this.
"""

import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from topout.packs.pack import Pack

_READ_BYTES = 4 << 20
_BATCH = 256


@dataclass(frozen=True, kw_only=True)
class ReadingRate:
    what: str
    samples_per_s: float
    bytes_per_s: float
    num_samples: int


def reading_rates(pack: Pack, seconds: float = 2.0, seed: int = 0) -> list[ReadingRate]:
    """Each way of reading for at most so long."""
    order = list(range(len(pack)))
    shuffled = random.Random(seed).sample(order, len(order))
    rates = [
        _timed("shards, raw", lambda: _raw(pack), seconds),
        _timed("in order, verified", lambda: _records(pack, order), seconds),
        _timed("at random, verified", lambda: _records(pack, shuffled), seconds),
    ]
    # numbers alone come from the index, at a rate that says nothing about reading samples
    if pack.layout.fixed:
        rates.append(_timed(f"gather, batches of {_BATCH}, verified", lambda: _gathered(pack, shuffled), seconds))
    return rates


def _timed(what: str, read: Callable[[], Iterator[tuple[int, int]]], seconds: float) -> ReadingRate:
    num_samples = num_bytes = 0
    start = time.perf_counter()
    for samples, size in read():
        num_samples += samples
        num_bytes += size
        if time.perf_counter() - start > seconds:
            break
    taken_s = max(time.perf_counter() - start, 1e-9)
    return ReadingRate(
        what=what, samples_per_s=num_samples / taken_s, bytes_per_s=num_bytes / taken_s, num_samples=num_samples
    )


def _raw(pack: Pack) -> Iterator[tuple[int, int]]:
    for shard in pack.shards:
        share = shard.entry.num_samples / shard.size_bytes
        given = 0
        descriptor = shard.descriptor
        for offset in range(0, shard.size_bytes, _READ_BYTES):
            size = len(os.pread(descriptor.number, _READ_BYTES, offset))
            until = round(share * (offset + size))
            yield until - given, size
            given = until
        shard.rest()


def _records(pack: Pack, order: list[int]) -> Iterator[tuple[int, int]]:
    for number in order:
        yield 1, len(pack.record(number))


def _gathered(pack: Pack, order: list[int]) -> Iterator[tuple[int, int]]:
    for start in range(0, len(order), _BATCH):
        batch = pack.gather(order[start : start + _BATCH])
        yield min(_BATCH, len(order) - start), sum(values.nbytes for values in batch.values())
