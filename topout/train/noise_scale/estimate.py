"""The noise scale from pairs of squared norms: a ratio of averages, its interval, and whether it moved.

    signal = (B * big - b * small) / (B - b)          |G|^2, without bias
    noise  = (small - big) / (1/b - 1/B)              tr(Sigma), without bias
    B_simple = mean(noise) / mean(signal)

`small` is the mean squared norm of gradients of b samples, `big` the squared norm of their mean, over B samples. One
step's ratio says nothing: its denominator is often negative. The interval is Fieller's, which is made for ratios and
has no upper end where the denominator is not surely above zero. It is computed at 95 % and said to hold at 90 %, since
squared norms are skewed and a window is short. Not for a window in which the weights went far: see `has_drifted`.
Reference: McCandlish et al., An Empirical Model of Large-Batch Training, appendix A; Fieller 1954.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

FEWEST_SAMPLES = 8
DRIFT_FACTOR = 3.0
NUM_PARTS = 4
_NORMAL_QUANTILE = 1.959964  # two-sided 95 %


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One step's squared norms. `batch_small` and `batch_big` are the numbers of samples behind them."""

    step: int
    small: float
    big: float
    batch_small: int
    batch_big: int

    @property
    def signal(self) -> float:
        return (self.batch_big * self.big - self.batch_small * self.small) / (self.batch_big - self.batch_small)

    @property
    def noise(self) -> float:
        return (self.small - self.big) / (1 / self.batch_small - 1 / self.batch_big)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A noise scale in samples. `high` is infinite where the window is too short to tell noise from signal."""

    value: float
    low: float
    high: float
    has_drifted: bool
    """It moved by more than a factor of 3 within the window: no single figure describes it."""
    num_samples: int
    batch_size: int
    """Samples behind the averaged gradient, over all ranks."""

    def __str__(self) -> str:
        if math.isinf(self.high):
            return f"above {self.low:,.0f} (no upper limit from {self.num_samples} steps)"
        moved = ", moving" if self.has_drifted else ""
        return f"{self.value:,.0f} ({self.low:,.0f} to {self.high:,.0f}{moved})"


def estimate(samples: Sequence[Sample]) -> Estimate | None:
    """None before there are enough samples."""
    if len(samples) < FEWEST_SAMPLES:
        return None
    noise, signal = _columns(samples)
    low, high = interval(noise, signal)
    return Estimate(
        value=_ratio(noise, signal),
        low=low,
        high=high,
        has_drifted=has_drifted(noise, signal),
        num_samples=len(samples),
        batch_size=samples[-1].batch_big,
    )


def interval(noise: Floats, signal: Floats) -> tuple[float, float]:
    """All ratios r for which mean(noise - r * signal) could be zero, so far as the spread tells."""
    num = len(noise)
    covariance = np.cov(noise, signal) / num
    ratio = _ratio(noise, signal)
    reach = _student(num - 1) ** 2
    if math.isfinite(ratio):
        reach *= _inflation(noise - ratio * signal)
    mean_noise, mean_signal = float(noise.mean()), float(signal.mean())
    # a r^2 - 2 b r + c <= 0
    a = mean_signal**2 - reach * covariance[1, 1]
    b = mean_noise * mean_signal - reach * covariance[0, 1]
    c = mean_noise**2 - reach * covariance[0, 0]
    root = math.sqrt(max(b * b - a * c, 0.0))
    if a > 0 and mean_signal > 0:
        return max((b - root) / a, 0.0), max((b + root) / a, 0.0)
    if c <= 0:
        return 0.0, math.inf  # not even noise is surely above zero
    # the signal may be zero, so the ratio has no upper end; the root that is left is the lower one
    roots = [r for r in ((b - root) / a, (b + root) / a) if r > 0] if a else [c / (2 * b)] if b > 0 else []
    return (min(roots) if roots else 0.0), math.inf


def has_drifted(noise: Floats, signal: Floats) -> bool:
    """Whether two quarters of the window differ as far as a move of a factor of 3 over the window makes them.

    Their centres are at most three quarters of a window apart. Their intervals must not touch: few samples differ
    by more than that by chance.
    """
    if len(noise) < NUM_PARTS * FEWEST_SAMPLES:
        return False
    parts = list(zip(np.array_split(noise, NUM_PARTS), np.array_split(signal, NUM_PARTS), strict=True))
    values = [_ratio(*part) for part in parts]
    ends = [interval(*part) for part in parts]
    factor = DRIFT_FACTOR ** (1 - 1 / NUM_PARTS)
    return any(
        values[upper] > factor * values[lower] and ends[upper][0] > ends[lower][1]
        for lower in range(NUM_PARTS)
        for upper in range(NUM_PARTS)
    )


def _columns(samples: Sequence[Sample]) -> tuple[Floats, Floats]:
    pairs = np.array([(sample.noise, sample.signal) for sample in samples], dtype=np.float64)
    return pairs[:, 0], pairs[:, 1]


def _ratio(noise: Floats, signal: Floats) -> float:
    below = float(signal.mean())
    return max(float(noise.mean()) / below, 0.0) if below > 0 else math.inf


def _inflation(residual: Floats) -> float:
    """How much wider the mean's variance is since neighbours are alike: (1 + rho) / (1 - rho), never below 1."""
    centred = residual - residual.mean()
    spread = float(centred @ centred)
    rho = float(centred[1:] @ centred[:-1]) / spread if spread > 0 else 0.0
    rho = min(max(rho, 0.0), 0.8)
    return (1 + rho) / (1 - rho)


def _student(freedom: int) -> float:
    """Student's two-sided 95 % quantile by Cornish and Fisher's expansion: within 1 % from 6 degrees of freedom on."""
    z = _NORMAL_QUANTILE
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return float(z + first / freedom + second / freedom**2 + third / freedom**3)
