"""The course of the rate: a linear warm-up, then a decay, as shares of the full rate.

    warm-up: (step + 1) / warmup        cosine: (1 + cos(pi x)) / 2        poly: (1 - x)^power        constant: 1
    step: factor ^ (milestones passed)          x: how far from the end of the warm-up to the end of training, 0 to 1

Not for rates that answer to a metric: torch's ReduceLROnPlateau does that, with the same optimizers.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch

from topout.schema.errors import TopoutError
from topout.train.optim.batch_rule import refusal, unknown

DECAYS = ("cosine", "poly", "constant", "step")


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Counts optimizer steps, not batches of an accumulation."""

    steps: int
    warmup_steps: int = 0
    decay: str = "cosine"
    power: float = 2.0
    """Of `poly`; 2 as in the LARS paper."""
    milestones: tuple[int, ...] = ()
    """Of `step`: the steps at which the rate falls."""
    factor: float = 0.1
    """Of `step`: to this share of itself."""

    def __post_init__(self) -> None:
        if self.decay not in DECAYS:
            raise unknown("decay", self.decay, DECAYS)
        if self.steps < 1:
            raise refusal("number of steps", self.steps, "a whole number from 1 on")
        if self.warmup_steps < 0:
            raise refusal("warm-up", self.warmup_steps, "0 or more steps")
        if self.warmup_steps >= self.steps:
            raise TopoutError(
                f"The warm-up takes {self.warmup_steps} steps, and training has {self.steps}.",
                why="The full rate would never be reached.",
                do="shorten the warm-up, train longer or take smaller batches",
            )
        if not 0 < self.power < math.inf:
            raise refusal("power", self.power, "a number above 0")
        if not 0 < self.factor <= 1:
            raise refusal("factor", self.factor, "a number above 0 and up to 1")
        if self.decay == "step" and (not self.milestones or list(self.milestones) != sorted(set(self.milestones))):
            raise refusal("milestones", self.milestones, "rising numbers, at least one")

    def share(self, step: int) -> float:
        """Of the full rate, in step `step` from 0."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        x = min(1.0, (step - self.warmup_steps) / (self.steps - self.warmup_steps))
        if self.decay == "cosine":
            return (1 + math.cos(math.pi * x)) / 2
        if self.decay == "poly":
            return float((1 - x) ** self.power)
        if self.decay == "step":
            return float(self.factor ** sum(step >= milestone for milestone in self.milestones))
        return 1.0

    def scheduler(self, optimizer: Any) -> Any:
        """torch's LambdaLR: `.step()` it after each optimizer step."""

        # a plain function, which LambdaLR leaves out of its state: a resumed run has the schedule it is given
        def share(step: int) -> float:
            return self.share(step)

        return torch.optim.lr_scheduler.LambdaLR(optimizer, share)
