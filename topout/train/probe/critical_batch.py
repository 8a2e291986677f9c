"""The critical batch size, by short runs from the same weights: beyond it, doubling the batch saves few steps.

    found = topout.probe_batch(model, loss, data, batches=(32, 128, 512, 2048))
    found.value, found.low, found.high      # samples

Each size trains until it has reached the loss that the smallest one reaches in its budget, at the rate that suits it,
and S = Smin (1 + Bc / B) is fitted to the steps they took. It holds for these weights and this loss: late in a run it
is larger. Not for models that are sharded, and not for what a job does all the time: its cost is the largest batch
times the steps it needs, a few times over. Ranks that call it together do the same work each.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from topout.schema.errors import TopoutError
from topout.train.checkpoint import random_state
from topout.train.parallel import is_distributed, unwrapped
from topout.train.probe.branch import Loss, Start
from topout.train.probe.fit import fit
from topout.train.probe.samples import Samples
from topout.train.probe.search import Best, baseline, fewest_steps

FEWEST_SIZES = 3
FEWEST_STEPS = 10


@dataclass(frozen=True, kw_only=True)
class CriticalBatch:
    """In samples. `value` is None where the sizes tried do not bend; `low` and `high` are then all that is known."""

    value: float | None
    low: float
    high: float
    steps_at: Mapping[int, tuple[float, ...]]
    """Batch size -> steps to the target, one entry a run."""
    rate_factor_at: Mapping[int, float]
    """Batch size -> what the given learning rate was multiplied by."""
    target_loss: float
    fewest_steps: float
    """What no batch goes below: Smin."""
    unreached: tuple[int, ...] = field(default=())
    """Sizes that did not reach the target at any rate."""

    def __str__(self) -> str:
        if self.value is not None:
            high = "no upper limit" if math.isinf(self.high) else f"{self.high:,.0f}"
            return f"critical batch {self.value:,.0f} ({self.low:,.0f} to {high})"
        if math.isinf(self.high):
            return f"critical batch above {self.low:,.0f}: steps still fell in proportion at the largest size"
        return f"critical batch below {self.high:,.0f}: larger sizes needed as many steps as the smallest"


def probe_batch(
    model: Any,
    loss: Loss,
    data: Any,
    *,
    batches: Sequence[int] = (32, 128, 512, 2048),
    optimizer: Any = None,
    steps: int = 120,
    chunk: int = 512,
    repeats: int = 2,
    seed: int = 0,
) -> CriticalBatch:
    """Trains copies of `model`, a module or a function that makes one; what was given stays as it is.

    `loss(model, batch)` is the mean over the samples of a batch. `data`: tensors or a data set. `optimizer`: one of
    this model's, whose state is copied too, or a function from parameters to one; left out, SGD with momentum. Its
    rate is that of the smallest batch and need only be about right. `steps`: budget of the smallest batch, which sets
    the target. `chunk`: samples of one forward, as large as a rank's batch would be. `repeats`: runs of each size at
    each rate, with other samples.
    """
    model = _module(model)
    sizes = sorted(set(batches))
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    kept = random_state.captured(device)
    try:
        samples = Samples(data, device, seed)
        _check_sizes(sizes, samples.num_samples)
        _check(model, steps=steps, repeats=repeats, chunk=chunk)
        start = Start(model=model, optimizer=optimizer or _sgd, loss=loss, samples=samples, chunk=chunk)
        return _probe(start, sizes, steps, repeats, seed)
    finally:
        random_state.restore(kept, device)


def _probe(start: Start, sizes: list[int], steps: int, repeats: int, seed: int) -> CriticalBatch:
    target, exponent, first_loss = baseline(start, sizes[0], steps, seed)
    if not target < first_loss:
        raise _did_not_fall(steps, sizes[0], first_loss, target)
    seeds = range(seed, seed + repeats)
    bests: dict[int, Best] = {}
    last_size, cap = sizes[0], float(steps)
    for size in sizes:
        doublings = math.log2(size / last_size)
        exponents = dict.fromkeys(round(exponent + doublings * rule) for rule in (0.5, 0, 1))
        found = fewest_steps(start, size, exponents, cap=cap, target=target, seeds=seeds)
        if found is None:
            continue
        bests[size] = found
        # with the right rate a larger batch never needs more steps
        last_size, exponent, cap = size, found.exponent, found.steps
    steps_at = {size: found.runs for size, found in bests.items()}
    if len(steps_at) < FEWEST_SIZES:
        raise TopoutError(
            f"Only {len(steps_at)} of the sizes {', '.join(map(str, sizes))} reached a loss of {target:.4g}.",
            why="A curve through fewer than three points says nothing.",
            do="pass sizes nearer to each other, or more steps= for the smallest",
        )
    curve = fit(steps_at, seed)
    return CriticalBatch(
        value=curve.critical,
        low=curve.low,
        high=curve.high,
        steps_at=steps_at,
        rate_factor_at={size: 2.0**found.exponent for size, found in bests.items()},
        target_loss=target,
        fewest_steps=curve.fewest_steps,
        unreached=tuple(size for size in sizes if size not in bests),
    )


def _did_not_fall(steps: int, size: int, before: float, after: float) -> TopoutError:
    return TopoutError(
        f"The loss did not fall in {steps} steps of {size} samples: {before:.4g} before, {after:.4g} after.",
        why="Sizes are compared by how soon they reach what the smallest one reaches.",
        do="pass steps= several times as many, a larger smallest batch, or weights that still learn",
    )


def _sgd(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, 0.05, momentum=0.9)


def _module(model: Any) -> Any:
    if not isinstance(model, torch.nn.Module):
        if not callable(model):
            raise TopoutError(
                f"{type(model).__name__} is no model to probe.",
                why="Copies of it are trained from the same weights.",
                do="pass a torch.nn.Module, or a function that makes one",
            )
        model = model()
    model = unwrapped(getattr(model, "_orig_mod", model))
    if is_distributed(model):
        raise TopoutError(
            "A sharded model cannot be probed.",
            why="A probe trains copies on one rank, and a rank holds a part of this model.",
            do="probe before fully_shard, or a smaller model of the same kind",
        )
    return model


def _check_sizes(sizes: list[int], num_samples: int) -> None:
    wrong = [size for size in sizes if not isinstance(size, int) or isinstance(size, bool) or size < 1]
    if wrong or len(sizes) < FEWEST_SIZES:
        raise TopoutError(
            f"batches={tuple(sizes)} cannot be fitted.",
            why=f"{wrong[0]!r} is no batch size." if wrong else "A curve needs three sizes or more.",
            do="pass four sizes, each four times the last, such as (32, 128, 512, 2048)",
        )
    if sizes[-1] > num_samples:
        raise TopoutError(
            f"A batch of {sizes[-1]:,} is more than the {num_samples:,} samples of the data.",
            why="Its samples would repeat within one step.",
            do=f"pass sizes up to {num_samples:,}, or more data",
        )


def _check(model: Any, **counts: int) -> None:
    for name, value in counts.items():
        least = FEWEST_STEPS if name == "steps" else 1
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise TopoutError(
                f"A probe has no {name}={value!r}.", why="It is a count.", do=f"{name}: a whole number from {least} on"
            )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise TopoutError(
            "The model has no parameter that learns.", why="All have requires_grad=False.", do="probe one that trains"
        )
