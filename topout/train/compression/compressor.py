"""What every codec is: a communication hook for DDP, its counters, and the state that belongs in a checkpoint."""

import time
from abc import ABC, abstractmethod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from topout.train.compression.bucket import Bucket, ParameterNames
from topout.train.compression.lane import Lane
from topout.train.compression.traffic import Traffic, all_reduce_bytes
from topout.train.place import Place


class Compressor(ABC):
    """One model's; all ranks make it together. Its hook may be registered again on each new reducer of that model."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.traffic = Traffic()
        self.parameters = ParameterNames()
        self.num_steps = 0

    def learn(self, model: nn.Module) -> None:
        """Learns the parameters' names; again whenever the model has got new parameters."""
        self.parameters.learn(model)

    @property
    def bytes_sent(self) -> int:
        return self.traffic.bytes_sent

    @abstractmethod
    def hook(self, state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """For `ddp.register_comm_hook`; `state` is not used."""

    def state_dict(self) -> dict[str, Any]:
        """What this rank remembers, part of its checkpoint; to be taken between steps."""
        return {"codec": type(self).__name__, "world_size": self.place.world_size, **self.memory()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes back what `state_dict` gave on the same rank; what another codec remembered means nothing here."""
        if state.get("codec") == type(self).__name__:
            self.recall(state, is_same_world=state.get("world_size") == self.place.world_size)

    def memory(self) -> dict[str, Any]:
        return {"num_steps": self.num_steps}

    def recall(self, memory: dict[str, Any], *, is_same_world: bool) -> None:
        """What belongs to single ranks means nothing in a world of another size."""
        self.num_steps = int(memory["num_steps"])


class LaneCompressor(Compressor):
    """A codec of several collectives a bucket: they run on a lane."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.lane = Lane(place)

    def hook(self, state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        given = self.parameters.bucket(bucket)
        if self.place.world_size == 1:
            return completed(given.buffer)
        step = self.num_steps
        self.num_steps += given.is_last

        def job() -> Tensor:
            with torch.no_grad():
                self.exchange(given, step)
            return given.buffer

        self.traffic.add(plain=all_reduce_bytes(given.buffer.nbytes, self.place.world_size))
        return self.lane.submit(job, done=lambda busy_ns: self.traffic.add(busy_ns=busy_ns))

    @abstractmethod
    def exchange(self, bucket: Bucket, step: int) -> None:
        """Writes the average over ranks into the bucket's buffer; on the lane's thread, `step` counted from 0."""

    def average(self, values: Tensor) -> None:
        """The plain average, for what is not worth compressing."""
        values.div_(self.place.world_size)
        dist.all_reduce(values, group=self.lane.group)
        self.traffic.add(sent=all_reduce_bytes(values.nbytes, self.place.world_size))


def completed(buffer: Tensor) -> torch.futures.Future[Tensor]:
    devices = [buffer.device] if buffer.is_cuda else None
    future: Any = torch.futures.Future(devices=devices)
    future.set_result(buffer)
    return future


def elapsed_ns(begun_ns: int) -> int:
    return time.perf_counter_ns() - begun_ns
