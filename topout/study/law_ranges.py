"""How far laws of scaling can be trusted beyond the points they were fitted to: 80 % ranges, by fitting drawn points.

Every point is drawn within its own interval many times over, the laws are fitted to each draw, and the middle of what
they say is the range. It holds what the points leave open, not that a law may be the wrong one: laws that lie far apart
say that. Points of a single run have no interval, and then there is no range.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from topout.study.description import NORMAL_TENTH
from topout.study.point_laws import fitted_laws
from topout.study.scaling import ScalingPoint

DRAWS = 100


@dataclass(frozen=True, kw_only=True)
class LawRange:
    """What a law says of some ranks, in samples a second."""

    ranks: int
    value: float
    low: float
    high: float


def law_ranges(points: Sequence[ScalingPoint], counts: Sequence[int], *, seed: int = 0) -> dict[str, list[LawRange]]:
    """By law; empty where there is no point of one rank."""
    rates = {point.ranks: point.samples_per_s for point in points}
    if 1 not in rates:
        return {}
    random = np.random.default_rng(seed)
    drawn: dict[str, list[list[float]]] = {}
    for _ in range(DRAWS if any(point.high > point.low for point in points) else 0):
        for name, law in fitted_laws(points, _draw(points, random))[0].items():
            drawn.setdefault(name, []).append([law.rate(count) for count in counts])
    found = {}
    for name, law in fitted_laws(points, rates)[0].items():
        values = [law.rate(count) for count in counts]
        low, high = np.quantile(drawn[name], [0.1, 0.9], axis=0) if drawn else (values, values)
        found[name] = [
            LawRange(ranks=count, value=value, low=min(float(below), value), high=max(float(above), value))
            for count, value, below, above in zip(counts, values, low, high, strict=True)
        ]
    return found


def _draw(points: Sequence[ScalingPoint], random: np.random.Generator) -> dict[int, float]:
    """A rate below a tenth of the measured one is no rate; an interval of two runs can reach that far."""
    spreads = {point.ranks: (point.high - point.samples_per_s) / NORMAL_TENTH for point in points}
    return {
        point.ranks: max(0.1 * point.samples_per_s, point.samples_per_s + spreads[point.ranks] * float(random.normal()))
        for point in points
    }
