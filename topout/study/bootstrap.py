"""A figure of some measurements with its 80 % range, by drawing the measurements anew.

Not for one measurement: nothing says how far it may be off.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

DRAWS = 300

Floats = NDArray[np.float64]


def ranged(values: Floats, of: Callable[[Floats], float], random: np.random.Generator) -> dict[str, float]:
    """Draws along the last axis: steps, or occasions.

    The basic bootstrap: as far as drawn figures lie above the value, the true one may lie below it.
    """
    num = values.shape[-1]
    drawn = [of(values[..., random.integers(0, num, num)]) for _ in range(DRAWS)]
    value = of(values)
    high, low = (2 * value - float(edge) for edge in np.quantile(drawn, [0.1, 0.9]))
    return {"value": value, "low": max(0.0, min(low, value)), "high": max(high, value)}


def ranged_rate(seconds: Floats, amount: float, random: np.random.Generator) -> dict[str, float]:
    """`amount` over the mean of seconds. Of a rate itself the range may reach 0, which says that it is not known."""
    found = ranged(seconds, mean, random)
    # no mean lies below the shortest, but for its last digit
    shortest = min(found["value"], max(found["low"], float(seconds.min())))
    return {"value": amount / found["value"], "low": amount / found["high"], "high": amount / shortest}


def mean(values: Floats) -> float:
    return float(values.mean())
