"""How much longer the slowest of n ranks takes than the mean, and which part of the spread belongs to a rank for good.

A synchronous step ends when its slowest rank does. For normal spread the expected maximum is Blom's

    E[max of n] = mean + s q((n - 3/8) / (n + 1/4)),  q the normal quantile.

Not for heavy tails: one rank that hangs now and then is a failure, not a spread.
"""

from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray


def expected_maximum(num: int) -> float:
    """Of so many standard normal values."""
    return 0.0 if num < 2 else NormalDist().inv_cdf((num - 0.375) / (num + 0.25))


def split_spread(steps_s: NDArray[np.float64]) -> tuple[float, float]:
    """Persistent and transient spread, relative to the mean, from seconds by (rank, step).

    A one-way analysis of variance with random effects: what differs between ranks beyond what steps of one rank
    differ by belongs to the rank.
    """
    mean = float(steps_s.mean())
    if mean == 0.0:  # of steps that were drawn again, none may have had any of it
        return 0.0, 0.0
    num_ranks, num_steps = steps_s.shape
    within = float(steps_s.var(axis=1, ddof=1).mean()) if num_steps > 1 else 0.0
    between = float(steps_s.mean(axis=1).var(ddof=1)) if num_ranks > 1 else 0.0
    return max(0.0, between - within / max(1, num_steps)) ** 0.5 / mean, within**0.5 / mean
