"""The critical batch from steps to a target at several batch sizes: S(B) = Smin (1 + Bc / B).

Equivalently E = S B = Emin (1 + B / Bc) samples. Fitted in logarithms, where a step more at 10 weighs what ten more do
at 100; a count is uncertain by half a step besides. Not to be believed beyond the sizes that were tried: where the
points do not bend between them, only a bound is known.
Reference: McCandlish et al., An Empirical Model of Large-Batch Training, equation 2.11.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SPREAD = 0.1
"""Relative scatter of steps to a target from run to run, where the points themselves tell less."""
NUM_DRAWS = 200
BEND = 1.35
"""A curve that nowhere leaves its straight line by this factor within the probed sizes has no bend to be found."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """`critical` is None where only the bounds `low` and `high` are known."""

    critical: float | None
    low: float
    high: float
    fewest_steps: float


def fit(steps_at: Mapping[int, Sequence[float]], seed: int = 0) -> Curve:
    """`steps_at` holds, for each batch size, the steps of one or several runs."""
    batches = np.array([batch for batch, runs in steps_at.items() for _ in runs], dtype=np.float64)
    steps = np.array([run for runs in steps_at.values() for run in runs], dtype=np.float64)
    critical, fewest = _solve(batches, steps)
    smallest, largest = float(batches.min()), float(batches.max())
    if 1 + largest / critical < BEND:  # twice the batch, half the steps, all the way
        return Curve(critical=None, low=largest, high=math.inf, fewest_steps=fewest)
    if 1 + critical / smallest < BEND:  # no size needs fewer steps than another
        return Curve(critical=None, low=0.0, high=smallest, fewest_steps=fewest)
    low, high = _interval(batches, steps, critical, fewest, seed)
    return Curve(critical=critical, low=min(low, critical), high=max(high, critical), fewest_steps=fewest)


def _solve(batches: Floats, steps: Floats) -> tuple[float, float]:
    """The least squares over a fine grid of critical batches; Smin follows from each."""
    weights = 1 / (SPREAD**2 + (0.5 / steps) ** 2)
    grid = np.geomspace(batches.min() / 30, batches.max() * 30, 400)
    shape = np.log1p(grid[:, None] / batches[None, :])
    logs = np.log(steps)[None, :]
    levels = ((logs - shape) * weights).sum(1) / weights.sum()
    losses = (((logs - shape - levels[:, None]) ** 2) * weights).sum(1)
    best = int(losses.argmin())
    return float(grid[best]), float(np.exp(levels[best]))


def _interval(batches: Floats, steps: Floats, critical: float, fewest: float, seed: int) -> tuple[float, float]:
    """95 % of fits to points scattered as these are, and what leaving out any one size gives; said to hold at 90 %."""
    expected = np.log(fewest) + np.log1p(critical / batches)
    freedom = max(len(steps) - 2, 1)
    spread = max(float(np.sqrt(((np.log(steps) - expected) ** 2).sum() / freedom)), SPREAD)
    chance = np.random.default_rng(seed)
    drawn = [_solve(batches, np.exp(expected + chance.normal(0, spread, len(steps))))[0] for _ in range(NUM_DRAWS)]
    low, high = np.percentile(drawn, [2.5, 97.5])
    if len(set(batches.tolist())) > 3:
        without = [_solve(batches[batches != batch], steps[batches != batch])[0] for batch in set(batches.tolist())]
        low, high = min(low, *without), max(high, *without)
    return float(low), float(high) if high < 10 * batches.max() else math.inf
