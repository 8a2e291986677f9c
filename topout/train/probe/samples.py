"""The data of a probe: batches of any size in an order of their own, and a fixed sample to judge by.

Not a loader: samples are taken one by one in this process, unless the data are tensors. Give a part of a large set.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import TensorDataset, default_collate

from topout.schema.errors import TopoutError

FIXED = 512


class Samples:
    """`data`: tensors of equal length, or anything with `len` and numbers for keys, as DataLoader takes it."""

    def __init__(self, data: Any, device: torch.device, seed: int) -> None:
        self.device = device
        self._tensors: tuple[Any, ...] | None = None
        if isinstance(data, TensorDataset):
            data = data.tensors
        if isinstance(data, torch.Tensor):
            data = (data,)
        if isinstance(data, (tuple, list)) and data and all(isinstance(part, torch.Tensor) for part in data):
            self._tensors = tuple(data)
            self.num_samples = len(data[0])
        elif hasattr(data, "__getitem__") and hasattr(data, "__len__"):
            self.num_samples = len(data)
        else:
            raise TopoutError(
                f"A probe cannot draw batches of several sizes from {type(data).__name__}.",
                why="It needs samples by number: loaders and streams hand out batches of one size.",
                do="pass the data set of the loader (loader.dataset), or tensors",
            )
        self._data = data
        chance = torch.Generator().manual_seed(seed)
        self._fixed = torch.randperm(self.num_samples, generator=chance)[:FIXED]
        self._chunks: list[tuple[int, Any]] | None = None

    def batches(self, size: int, seed: int) -> Iterator[Any]:
        """Numbers of samples, in one shuffle after another; a batch may reach over the end of one."""
        chance = torch.Generator().manual_seed(seed)
        order = torch.empty(0, dtype=torch.int64)
        while True:
            while len(order) < size:
                order = torch.cat([order, torch.randperm(self.num_samples, generator=chance)])
            yield order[:size]
            order = order[size:]

    def take(self, indices: Any) -> Any:
        """As a loader would give it, on the model's device; a single tensor stays one."""
        if self._tensors is not None:
            parts = [_to(part[indices.to(part.device)], self.device) for part in self._tensors]
            return parts[0] if len(parts) == 1 else tuple(parts)
        return _to(default_collate([self._data[int(index)] for index in indices]), self.device)

    def fixed(self, chunk: int) -> Iterator[tuple[int, Any]]:
        if self._chunks is None:
            self._chunks = [(len(part), self.take(part)) for part in self._fixed.split(chunk)]
        yield from self._chunks


def _to(batch: Any, device: torch.device) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {key: _to(value, device) for key, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        return type(batch)(_to(value, device) for value in batch) if not hasattr(batch, "_fields") else batch
    return batch
