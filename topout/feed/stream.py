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
from topout.epoch.whole_number import whole
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
    """An IterableDataset over `dataset`; `set_epoch` changes the order, also of workers that stay alive."""
    own_rank, own_world = rank_and_world(os.environ, rank, world_size)
    return _made(dataset, {"shuffle": shuffle, "seed": seed}, whole("epoch", epoch, least=0), (own_rank, own_world))


def _made(dataset: PackedDataset, options: dict[str, Any], epoch: Any, place: tuple[int, int]) -> Any:
    """`epoch` is a number, or another process's one, shared."""
    from multiprocessing.context import get_spawning_popen
    from multiprocessing.sharedctypes import RawValue

    from torch.utils.data import IterableDataset, get_worker_info

    class PackedStream(IterableDataset):  # type: ignore[misc]
        """Made here, since its base class must not be imported before it is wanted."""

        def __init__(self) -> None:
            # without a lock: those of one way to start processes are refused by the others
            self._epoch = RawValue("q", epoch) if isinstance(epoch, int) else epoch

        def set_epoch(self, number: int) -> None:
            self._epoch.value = whole("epoch", number, least=0)

        def __iter__(self) -> Iterator[Any]:
            worker = get_worker_info()
            num_workers, number = (worker.num_workers, worker.id) if worker else (1, 0)
            first, step = place[0] * num_workers + number, place[1] * num_workers
            return _walk(dataset, _order(dataset, **options, epoch=self._epoch.value), first, step)

        def __reduce__(self) -> Any:
            # shared memory goes to a process that is being started, and nowhere else
            is_spawning = get_spawning_popen() is not None
            return _made, (dataset, options, self._epoch if is_spawning else self._epoch.value, place)

    return PackedStream()


def _order(dataset: PackedDataset, shuffle: bool, seed: int, epoch: int) -> Order:
    return order(seed, epoch, len(dataset)) if shuffle else Sequential(num_positions=len(dataset))


def _walk(dataset: PackedDataset, epoch_order: Order, first: int, step: int) -> Iterator[Any]:
    num_positions = epoch_order.num_positions
    for start in range(first, num_positions, step * _CHUNK):
        positions = np.arange(start, min(start + step * _CHUNK, num_positions), step, dtype=np.int64)
        for number in epoch_order.at(positions).tolist():
            yield dataset[number]
