"""A pack as an iterable data set: shuffled globally, shared out over ranks and over a DataLoader's workers.

For programs built on iterable data sets. Where either will do, a map-style `PackedDataset` with a sampler is simpler,
and `topout.Loader` faster. Each rank and worker takes every k-th position of the epoch, so none is seen twice; ranks
may end one sample apart.
"""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from topout.epoch.order import Order, Sequential, order
from topout.epoch.partition import rank_and_world
from topout.feed.dataset import PackedDataset

_CHUNK = 4_096


def stream(
    dataset: PackedDataset,
    *,
    shuffle: bool = True,
    seed: int = 0,
    epoch: int = 0,
    rank: int | None = None,
    world_size: int | None = None,
) -> Any:
    """An IterableDataset over `dataset`; `set_epoch` changes the order, also of forked workers that stay alive."""
    from torch.utils.data import IterableDataset, get_worker_info

    own_rank, own_world = rank_and_world(os.environ, rank, world_size)

    class PackedStream(IterableDataset):  # type: ignore[misc]
        """Made here, since its base class must not be imported before it is wanted."""

        def __init__(self) -> None:
            import multiprocessing

            self._epoch = multiprocessing.Value("q", epoch)

        def set_epoch(self, number: int) -> None:
            self._epoch.value = number

        def __iter__(self) -> Iterator[Any]:
            worker = get_worker_info()
            num_workers, number = (worker.num_workers, worker.id) if worker else (1, 0)
            first, step = own_rank * num_workers + number, own_world * num_workers
            return _walk(dataset, _order(dataset, shuffle, seed, self._epoch.value), first, step)

        def __reduce__(self) -> Any:
            options = {"shuffle": shuffle, "seed": seed, "epoch": self._epoch.value}
            return _again, (dataset, {**options, "rank": own_rank, "world_size": own_world})

    return PackedStream()


def _again(dataset: PackedDataset, options: dict[str, Any]) -> Any:
    return stream(dataset, **options)


def _order(dataset: PackedDataset, shuffle: bool, seed: int, epoch: int) -> Order:
    return order(seed, epoch, len(dataset)) if shuffle else Sequential(num_positions=len(dataset))


def _walk(dataset: PackedDataset, epoch_order: Order, first: int, step: int) -> Iterator[Any]:
    num_positions = epoch_order.num_positions
    for start in range(first, num_positions, step * _CHUNK):
        positions = np.arange(start, min(start + step * _CHUNK, num_positions), step, dtype=np.int64)
        for number in epoch_order.at(positions).tolist():
            yield dataset[number]
