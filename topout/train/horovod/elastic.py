"""`hvd.elastic`, as far as a job of fixed size goes: state that can be saved in memory, restored and made equal.

No rank joins or leaves while a job runs. A failed one ends the job; `topout run --restarts` starts it again, and a
checkpoint on disk is what it goes on from.
"""

import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import Sampler

from topout.train.horovod import world
from topout.train.horovod.broadcasts import allgather_object, broadcast_object


class TorchState:
    """Model, optimizer and whatever else is given by name."""

    def __init__(self, model: Any = None, optimizer: Any = None, **others: Any) -> None:
        trained = {"model": model, "optimizer": optimizer}
        self._held = {**{name: value for name, value in trained.items() if value is not None}, **others}
        self._saved: dict[str, Any] = {}
        self._reset_callbacks: list[Callable[[], None]] = []
        self.save()

    def __getattr__(self, name: str) -> Any:
        held: dict[str, Any] = self.__dict__.get("_held", {})
        if name in held:
            return held[name]
        raise AttributeError(name)

    def __setattr__(self, name: str, value: Any) -> None:
        """What was not given by name at first is no part of the state, as with Horovod: a loader need not travel."""
        if name in self.__dict__.get("_held", {}):
            self._held[name] = value
        else:
            super().__setattr__(name, value)

    def register_reset_callbacks(self, callbacks: list[Callable[[], None]]) -> None:
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        self.save()

    def check_host_updates(self) -> None:
        """Hosts do not change while a job runs."""

    def save(self) -> None:
        self._saved = {
            name: copy.deepcopy(value.state_dict() if _has_state(value) else value)
            for name, value in self._held.items()
        }

    def restore(self) -> None:
        # optimizers and samplers go on in what they load, and it may be restored again
        self._load(copy.deepcopy(self._saved))

    def sync(self) -> None:
        """Rank 0's values everywhere; what samplers have processed is put together from all ranks."""
        for value in self._held.values():
            if isinstance(value, ElasticSampler):
                value.merge()
        self.save()
        self._load(broadcast_object(self._saved, 0))
        self.save()

    def _load(self, saved: dict[str, Any]) -> None:
        for name, value in saved.items():
            if _has_state(self._held.get(name)):
                self._held[name].load_state_dict(value)
            else:
                self._held[name] = value


def _has_state(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


class ElasticSampler(Sampler):  # type: ignore[misc]
    """A rank's share of what this epoch has not seen yet."""

    def __init__(self, dataset: Any, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch = 0
        self.processed_indices: set[int] = set()
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.processed_indices = set()
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        self.record_indices(self.get_indices(batch_idx, batch_size))

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        return self.indices[batch_idx * batch_size : (batch_idx + 1) * batch_size]

    def record_indices(self, indices: Any) -> None:
        self.processed_indices.update(indices)

    def merge(self) -> None:
        self.processed_indices = set().union(*allgather_object(self.processed_indices))
        self.reset()

    def reset(self) -> None:
        remaining = [number for number in range(len(self.dataset)) if number not in self.processed_indices]
        if self.shuffle:
            order = torch.randperm(len(remaining), generator=torch.Generator().manual_seed(self.seed + self.epoch))
            remaining = [remaining[number] for number in order.tolist()]
        size = world.size()
        padding = -len(remaining) % size
        if remaining:
            remaining += (remaining * (padding // len(remaining) + 1))[:padding]
        self.indices = remaining[world.rank() : len(remaining) : size]

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "processed_indices": self.processed_indices}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.epoch = state_dict["epoch"]
        self.processed_indices = state_dict["processed_indices"]
        self.reset()

    def __iter__(self) -> Iterator[int]:
        return iter(list(self.indices))

    def __len__(self) -> int:
        return len(self.indices)


def run(function: Callable[..., Any]) -> Callable[..., Any]:
    """Runs the function once, with the state made equal; a failure ends the job."""

    @functools.wraps(function)
    def running(state: Any, *args: Any, **kwargs: Any) -> Any:
        state.sync()
        return function(state, *args, **kwargs)

    return running
