"""One step's sums on their way over the ranks and to the host, while training goes on.

Not to be read at once: `is_there` tells; the step that samples next finds the answer long since come.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from topout.train.place import Place


class Travelling:
    """`values` of all ranks are added up; all ranks make it in the same step."""

    def __init__(self, values: Tensor, place: Place, *, step: int, at_ns: int) -> None:
        self.step, self.at_ns = step, at_ns
        self._work: Any = None
        self._event: Any = None
        self._values = values
        if place.world_size > 1:
            self._work = dist.all_reduce(values, group=place.group, async_op=True)
        if values.device.type == "cuda":
            if self._work is not None:
                self._work.wait()  # only this stream waits, not the host
            self._values = values.to("cpu", non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    @property
    def is_there(self) -> bool:
        if self._event is not None:
            return bool(self._event.query())
        return self._work is None or bool(self._work.is_completed())

    def answer(self) -> list[float]:
        if self._event is not None:
            self._event.synchronize()
        elif self._work is not None:
            self._work.wait()
        return [float(value) for value in self._values]
