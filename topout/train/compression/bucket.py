"""One bucket of gradients as DDP's reducer hands it to a communication hook, with its parameters named."""

from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from topout.schema.errors import TopoutError


@dataclass(frozen=True, kw_only=True)
class Bucket:
    index: int
    is_last: bool
    buffer: Tensor
    """All gradients end to end; the averages are written here."""
    gradients: tuple[Tensor, ...]
    """The same memory, each in the shape and strides of its parameter."""
    names: tuple[str, ...]

    def offset(self, number: int) -> int:
        """Where in the buffer gradient `number` begins."""
        return int(self.gradients[number].storage_offset() - self.buffer.storage_offset())


class ParameterNames:
    """Names of a model's parameters by identity; they outlive the buckets, and are the same on all ranks."""

    def __init__(self) -> None:
        self._model: Any = None
        self._names: dict[int, str] = {}
        self._numbers: dict[str, int] = {}

    def learn(self, model: nn.Module) -> None:
        if self._model is not None and self._model is not model:
            raise TopoutError(
                "One compressor was given to two models.",
                why="It remembers by parameter what it has held back, and counts the steps of one model.",
                do="make one compressor for each",
            )
        self._model = model
        named = list(model.named_parameters())
        self._names = {id(parameter): name for name, parameter in named}
        self._numbers = {name: number for number, (name, _) in enumerate(named)}

    def number(self, name: str) -> int:
        return self._numbers[name]

    def name(self, parameter: Tensor) -> str:
        try:
            return self._names[id(parameter)]
        except KeyError:
            raise TopoutError(
                f"A parameter of shape {tuple(parameter.shape)} is unknown to the compressor.",
                why="It was added to the model later, or the hook was registered without naming the parameters.",
                do="install(ddp, compressor) of topout.train.compression, or make(name, place, model)",
            ) from None

    def bucket(self, given: dist.GradBucket) -> Bucket:
        return Bucket(
            index=given.index(),
            is_last=given.is_last(),
            buffer=given.buffer(),
            gradients=tuple(given.gradients()),
            names=tuple(self.name(parameter) for parameter in given.parameters()),
        )
