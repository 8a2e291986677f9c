"""Notices a loss that is not a number, on any rank, without making the device wait.

Each loss is copied into one of `every` slots on the device. When they are full, all ranks agree on the first bad one in
a collective that nobody waits for; its result is read when the slots are full the next time. So the error names the
step and the rank, comes on all ranks at the same step, and `every` to twice as many steps late: `settle()` before a
checkpoint, so that none is written of a model that is lost already. Not a cure: what made the loss infinite is not
found here.
"""

from typing import Any

import torch
import torch.distributed as dist

from topout.schema.errors import ExitCode, TopoutError
from topout.train.place import Place

_NONE = 2**62


class FiniteLoss:
    """Watches the losses of one rank; all ranks hand in equally many.

    With `tolerates`, only a loss that was bad in all slots counts: a loss scaler skips single ones.
    """

    def __init__(self, place: Place, every: int, *, tolerates: bool = False) -> None:
        self.place = place
        self.tolerates = tolerates
        self._losses = torch.zeros(every, device=place.device)
        self._steps: list[int] = []
        self._asked: _Question | None = None

    def add(self, loss: Any, step: int) -> None:
        self._losses[len(self._steps)].copy_(loss.detach().reshape(()))
        self._steps.append(step)
        if len(self._steps) == len(self._losses):
            self._hear()
            self._ask()

    def settle(self) -> None:
        """Waits for the losses so far; all ranks call it together."""
        self._hear()
        if self._steps:
            self._ask()
            self._hear()

    def _ask(self) -> None:
        bad = ~torch.isfinite(self._losses[: len(self._steps)])
        if self.tolerates:
            bad &= bad.all() & (len(self._steps) == len(self._losses))
        numbers = torch.arange(len(bad), device=bad.device) * self.place.world_size + self.place.rank
        self._asked = _Question(torch.where(bad, numbers, _NONE).min(), self._steps, self.place)
        self._steps = []

    def _hear(self) -> None:
        asked, self._asked = self._asked, None
        first = _NONE if asked is None else asked.answer()
        if asked is None or first == _NONE:
            return
        slot, rank = divmod(first, self.place.world_size)
        times = f", and on all of {len(asked.steps)} batches since" if self.tolerates else ""
        raise TopoutError(
            f"The loss was not finite at step {asked.steps[slot]} on rank {rank}{times}.",
            why="Its gradients are not finite either, so parameters are lost on all ranks from that step on.",
            do="go on from a checkpoint before it with a lower learning rate, clip_norm=1.0 or precision='fp32'; "
            "torch.autograd.set_detect_anomaly(True) names the operation",
            exit_code=ExitCode.JOB_FAILED,
        )


class _Question:
    """The lowest number among ranks, on its way to the host."""

    def __init__(self, number: Any, steps: list[int], place: Place) -> None:
        self.steps = steps
        self._work = None
        self._event = None
        self._number = number
        if place.world_size > 1:
            self._work = dist.all_reduce(number, op=dist.ReduceOp.MIN, group=place.group, async_op=True)
        if number.device.type == "cuda":
            if self._work is not None:
                self._work.wait()  # only this stream waits, not the host
            self._number = number.to("cpu", non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    def answer(self) -> int:
        if self._event is not None:
            self._event.synchronize()
        elif self._work is not None:
            self._work.wait()
        return int(self._number.item())
