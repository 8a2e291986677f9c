"""A link as two numbers: time = alpha + bytes / beta, fitted to messages of several sizes.

Least squares on relative errors, so that a microsecond of a small message weighs as much as a millisecond of a large
one. Not for links that change their protocol with the size: the samples beside the fit show where it is wrong.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from topout.preflight.facts import LinkSample

INTERVAL = 0.9
_NUM_DRAWS = 200


@dataclass(frozen=True, kw_only=True)
class Fit:
    """`beta` is None when no size was large enough to tell it from nothing."""

    alpha_s: float
    alpha_interval_s: tuple[float, float]
    beta_bytes_per_s: float | None
    beta_interval_bytes_per_s: tuple[float, float] | None
    half_speed_bytes: float | None
    """Messages of this size reach half of beta."""
    worst_error_share: float
    """How far the line is off at the size that it fits worst; a link that is shaped or buffered is no line."""


def fit_link(samples: Sequence[LinkSample]) -> Fit | None:
    """None with fewer than two sizes. The interval holds 90 % of fits to resampled times."""
    usable = [sample for sample in samples if sample.times_s]
    if len({sample.num_bytes for sample in usable}) < 2:
        return None
    alpha_s, per_byte_s = fit_line([(sample.num_bytes, median(sample.times_s)) for sample in usable])
    errors = [abs(alpha_s + s.num_bytes * per_byte_s - median(s.times_s)) / median(s.times_s) for s in usable]
    draws = _bootstrap(usable)
    alphas = [draw[0] for draw in draws]
    betas = [1 / draw[1] for draw in draws if draw[1] > 0]
    return Fit(
        alpha_s=alpha_s,
        alpha_interval_s=_interval(alphas),
        beta_bytes_per_s=1 / per_byte_s if per_byte_s > 0 else None,
        beta_interval_bytes_per_s=_interval(betas) if per_byte_s > 0 and betas else None,
        half_speed_bytes=alpha_s / per_byte_s if per_byte_s > 0 else None,
        worst_error_share=max(errors),
    )


def fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(alpha, seconds a byte), neither negative, that minimise the sum of squared relative errors."""
    weights = [1 / time**2 for _, time in points]
    total = sum(weights)
    mean_bytes = sum(w * size for w, (size, _) in zip(weights, points, strict=True)) / total
    mean_time = sum(w * time for w, (_, time) in zip(weights, points, strict=True)) / total
    spread = sum(w * (size - mean_bytes) ** 2 for w, (size, _) in zip(weights, points, strict=True))
    both = sum(w * (size - mean_bytes) * (time - mean_time) for w, (size, time) in zip(weights, points, strict=True))
    slope = both / spread if spread > 0 else 0.0
    alpha = mean_time - slope * mean_bytes
    if slope < 0:
        return mean_time, 0.0
    if alpha < 0:
        # through the origin: the best slope under the same weights
        squares = sum(w * size**2 for w, (size, _) in zip(weights, points, strict=True))
        return 0.0, sum(w * size * time for w, (size, time) in zip(weights, points, strict=True)) / squares
    return alpha, slope


def _bootstrap(samples: Sequence[LinkSample]) -> list[tuple[float, float]]:
    # seeded: the same samples give the same interval
    chance = random.Random(0)
    return [
        fit_line([(s.num_bytes, median(chance.choices(s.times_s, k=len(s.times_s)))) for s in samples])
        for _ in range(_NUM_DRAWS)
    ]


def _interval(values: Sequence[float]) -> tuple[float, float]:
    ordered = sorted(values)
    outside = (1 - INTERVAL) / 2
    last = len(ordered) - 1
    return ordered[round(outside * last)], ordered[round((1 - outside) * last)]
