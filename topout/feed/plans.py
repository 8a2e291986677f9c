"""The batches of one iteration, in order: positions, samples and keys, worked out many batches at a time.

A permutation costs some forty array operations whatever its length, so small batches share them.
"""

from collections.abc import Callable, Iterator

import numpy as np

from topout.epoch.order import Order
from topout.epoch.partition import Partition
from topout.epoch.randomness import keys
from topout.feed.pipeline import BatchPlan

CHUNK = 16_384
"""Samples worked out together, unless a batch is larger."""


def plans(
    order: Order,
    partition: Partition,
    *,
    seed: int,
    epoch: int,
    num_batches: int,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> Iterator[BatchPlan]:
    # the first batch alone: it must not wait for what the later ones need
    first, per_chunk = 0, 1
    while first < num_batches:
        numbers = range(first, min(first + per_chunk, num_batches))
        batches = [partition.batch(number) for number in numbers]
        positions = np.concatenate(batches)
        samples = order.at(positions % order.num_positions)
        sample_keys = keys(seed, epoch, positions)
        start = 0
        for number, batch in zip(numbers, batches, strict=True):
            rows = slice(start, start + len(batch))
            start += len(batch)
            yield BatchPlan(
                number=number, positions=batch, samples=samples[rows], keys=sample_keys[rows], order=order,
                is_cancelled=is_cancelled,
            )  # fmt: skip
        first, per_chunk = numbers.stop, max(1, CHUNK // partition.batch_size)
