"""One short run from the same weights: a copy of model and optimizer trains until its loss is low enough.

The loss is that of a fixed sample of the data, as training sees it (batch statistics, dropout), looked at every
twelfth of the way: losses of single batches are noisier the smaller they are, and would favour one size. Nothing of
the caller's changes: not the weights, not the statistics, not the optimizer, not the random numbers.
"""

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from topout.train.probe.samples import Samples

Loss = Callable[[Any, Any], Any]
LOOK_EVERY = 1.08
"""Steps grow by this factor from one look to the next; the first ones are looked at one by one."""
NEAR = 1.09


@dataclass(frozen=True, kw_only=True)
class Start:
    """Where every run begins."""

    model: Any
    optimizer: Any
    """An optimizer of this model, whose state is branched too, or a function from parameters to one."""
    loss: Loss
    samples: Samples
    chunk: int

    def branch(self, rate_factor: float) -> tuple[Any, Any]:
        """A model and an optimizer of its own, its rates multiplied."""
        if isinstance(self.optimizer, torch.optim.Optimizer):
            # together, so that the copy holds the copied parameters; schedulers and hooks stay behind
            model, optimizer = copy.deepcopy((self.model, self.optimizer))
        else:
            model = copy.deepcopy(self.model)
            optimizer = self.optimizer(model.parameters())
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * rate_factor
        model.train()
        return model, optimizer


@dataclass(frozen=True, kw_only=True)
class Path:
    """What one run's loss was at the steps looked at; `reached` in steps, None where the target was not reached."""

    steps: list[int]
    losses: list[float]
    reached: float | None

    @property
    def levels(self) -> list[float]:
        return smoothed(self.steps, self.losses)


def run(start: Start, batch: int, rate_factor: float, *, most_steps: int, target: float | None, seed: int) -> Path:
    """Trains `most_steps`, or until the smoothed loss has come down to `target`, or has gone astray."""
    torch.manual_seed(seed)
    model, optimizer = start.branch(rate_factor)
    steps, losses = [0], [evaluated(start, model)]
    batches = start.samples.batches(batch, seed)
    next_look = 1.0
    for step in range(1, most_steps + 1):
        _train(start, model, optimizer, next(batches))
        if step < next_look and step != most_steps:
            continue
        next_look = max(step + 1.0, step * LOOK_EVERY)
        steps.append(step)
        losses.append(evaluated(start, model))
        is_astray = not math.isfinite(losses[-1]) or losses[-1] > losses[0] + max(1.0, abs(losses[0]))
        if is_astray:
            return Path(steps=steps, losses=losses, reached=None)
        # two looks after the crossing it can no longer move
        if target is not None and len(losses) > 3 and smoothed(steps[-6:], losses[-6:])[-3] <= target:
            break
    return Path(steps=steps, losses=losses, reached=None if target is None else crossing(steps, losses, target))


def smoothed(steps: list[int], losses: list[float]) -> list[float]:
    """The mean of all looks within 9 % of a step: long paths go up and down, and short ones bend too much for it."""
    levels = []
    for step in steps:
        looks = zip(steps, losses, strict=True)
        near = [loss for other, loss in looks if max(step, other) <= NEAR * min(step, other)]
        levels.append(sum(near) / len(near))
    return levels


def crossing(steps: list[int], losses: list[float], target: float) -> float | None:
    """At which step, between two looks, the smoothed loss came down to the target for the first time."""
    levels = smoothed(steps, losses)
    for at in range(1, len(levels)):
        if levels[at] <= target < levels[at - 1]:
            share = (levels[at - 1] - target) / (levels[at - 1] - levels[at])
            return steps[at - 1] + share * (steps[at] - steps[at - 1])
    return None


def evaluated(start: Start, model: Any) -> float:
    """The loss of the fixed sample, with buffers as they were afterwards and the same random numbers each time."""
    kept = [buffer.clone() for buffer in model.buffers()]
    weighted, count = 0.0, 0
    with torch.no_grad(), torch.random.fork_rng(devices=_devices(model)):
        torch.manual_seed(0)
        for size, chunk in start.samples.fixed(start.chunk):
            weighted += float(start.loss(model, chunk)) * size
            count += size
        for buffer, before in zip(model.buffers(), kept, strict=True):
            buffer.copy_(before)
    return weighted / count


def _train(start: Start, model: Any, optimizer: Any, indices: Any) -> None:
    """One step, its batch in chunks: a large batch is what many ranks make of it, and fits the device."""
    optimizer.zero_grad()
    for chunk in _chunks(indices, start.chunk):
        (start.loss(model, start.samples.take(chunk)) * (len(chunk) / len(indices))).backward()
    optimizer.step()


def _chunks(indices: Any, size: int) -> Iterator[Any]:
    for first in range(0, len(indices), size):
        yield indices[first : first + size]


def _devices(model: Any) -> list[torch.device]:
    return sorted({p.device for p in model.parameters() if p.device.type == "cuda"}, key=str)
