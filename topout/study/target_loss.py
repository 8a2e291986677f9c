"""How many samples a target loss takes, from a recorded curve of losses.

    L(s) = L_inf + A s^-a        s samples seen, L_inf what no training of this kind goes below

fitted to means of the curve over stretches that are equally long on a logarithmic axis, from a hundredth of its length
on, so that warm-up does not bend it. Residuals are drawn anew in blocks, for neighbouring losses resemble each other;
the middle 80 % of what comes out is the range. A target that the curve has reached is read off, not fitted.

Not across a change of the learning rate: a curve whose rate decayed at its end has a target that a longer one, with the
same decay later, would reach sooner than this says.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topout.schema.errors import TopoutError
from topout.study.losses import Losses

FAR = 4
"""So many times beyond the recorded samples a target is an extrapolation that deserves a warning."""
_BINS = 48
_FEWEST_BINS = 8
_WINDOW = 100
_DRAWS = 500
_BLOCK = 3
_OFF = 0.002
"""The law itself is not exact; without this, long curves would be fitted by their last stretch alone."""
_EXPONENTS = np.geomspace(0.02, 4.0, 40)
_NARROWINGS = 20
_ENOUGH_FIT = 0.05

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Target:
    """Samples until the target, at the batch that the curve was recorded with."""

    loss: float
    samples: float
    low: float
    high: float
    floor: float
    """L_inf, with its 80 % range."""
    floor_low: float
    floor_high: float
    exponent: float
    seen_samples: float
    is_seen: bool
    """The curve itself reaches the target."""
    notes: tuple[str, ...] = ()


def samples_to(target: float, losses: Losses, *, seed: int = 0) -> Target:
    at, means, errors = _binned(losses)
    floor, scale, exponent = (float(column[0]) for column in _fits(at, means[:, None], errors))
    fitted = floor + scale * at**-exponent
    drawn = fitted[:, None] + _residuals((means - fitted) / errors, np.random.default_rng(seed)) * errors[:, None]
    floors, scales, exponents = _fits(at, drawn, errors)
    floor_low, floor_high = _around(floor, floors)
    seen = float(losses.samples[-1])
    crossed = _crossing(at, means, target)
    if crossed is not None:
        noisy = means[:, None] + (drawn - fitted[:, None])
        others = np.array([_crossing(at, column, target) or seen for column in noisy.T])
        value = crossed
    else:
        if target <= floor_high or scale == 0:
            raise _unreachable(target, floor, floor_low, floor_high, float(means[-1]))
        value = (scale / (target - floor)) ** (1 / exponent)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            others = np.where(floors < target, (scales / (target - floors)) ** (1 / exponents), np.inf)
    low, high = (float(edge) for edge in np.quantile(others, [0.1, 0.9], method="closest_observation"))
    return Target(
        loss=target,
        samples=value,
        low=min(low, value),
        high=max(high, value),
        floor=floor,
        floor_low=floor_low,
        floor_high=floor_high,
        exponent=exponent,
        seen_samples=seen,
        is_seen=crossed is not None,
        notes=tuple(_notes(value, seen, means, fitted, is_seen=crossed is not None)),
    )


def _binned(losses: Losses) -> tuple[Floats, Floats, Floats]:
    """Mean samples and losses of stretches of equal logarithm, and what each mean is uncertain by."""
    kept = losses.samples >= losses.samples[-1] / _WINDOW
    samples, values = losses.samples[kept], losses.losses[kept]
    edges = np.geomspace(samples[0], samples[-1] * (1 + 1e-9), _BINS + 1)
    places = np.searchsorted(edges, samples, side="right")
    used, inverse, counts = np.unique(places, return_inverse=True, return_counts=True)
    if len(used) < _FEWEST_BINS:
        raise TopoutError(
            f"{losses.name} has too few losses to fit.",
            why=f"Its last {_WINDOW}-fold stretch of samples has {len(used)} that lie apart; {_FEWEST_BINS} are the "
            "fewest.",
            do="write the loss down more often, or train longer",
        )
    means = np.bincount(inverse, values) / counts
    at = np.exp(np.bincount(inverse, np.log(samples)) / counts)
    # neighbours differ by twice the noise's variance, and hardly by the slope
    noise = float(np.median(np.abs(np.diff(values)))) / 0.954 if len(values) > len(used) else 0.0
    return at, means, np.sqrt(noise**2 / counts + (_OFF * np.abs(means)) ** 2 + 1e-24)


def _fits(at: Floats, columns: Floats, errors: Floats) -> tuple[Floats, Floats, Floats]:
    """Floor, scale and exponent of each column: least squares in the first two, a search in the third."""
    weights = 1 / errors**2
    tried = np.stack([_solve(at, columns, weights, np.full(columns.shape[1], one))[0] for one in _EXPONENTS])
    best = tried.argmin(axis=0)
    low, high = _EXPONENTS[np.maximum(best - 1, 0)], _EXPONENTS[np.minimum(best + 1, len(_EXPONENTS) - 1)]
    for _ in range(_NARROWINGS):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        is_left = _solve(at, columns, weights, left)[0] < _solve(at, columns, weights, right)[0]
        low, high = np.where(is_left, low, left), np.where(is_left, right, high)
    exponents = (low + high) / 2
    _, floors, scales = _solve(at, columns, weights, exponents)
    return floors, scales * at[0] ** exponents, exponents


def _solve(at: Floats, columns: Floats, weights: Floats, exponents: Floats) -> tuple[Floats, Floats, Floats]:
    """What is missed, floor and scale (at the first point) of each column with its exponent."""
    falling = (at / at[0])[:, None] ** -exponents
    each = weights[:, None] / weights.sum()
    middle, mean = (each * falling).sum(axis=0), (each * columns).sum(axis=0)
    spread = (each * (falling - middle) ** 2).sum(axis=0)
    scale = np.maximum(0.0, (each * (falling - middle) * (columns - mean)).sum(axis=0) / spread)
    floor = mean - scale * middle
    # a loss that was never negative has no negative floor
    is_below = (floor < 0) & (columns > 0).all(axis=0)
    alone = (each * falling * columns).sum(axis=0) / (each * falling**2).sum(axis=0)
    scale, floor = np.where(is_below, alone, scale), np.where(is_below, 0.0, floor)
    return (each * (columns - floor - falling * scale) ** 2).sum(axis=0), floor, scale


def _residuals(of_unit: Floats, random: np.random.Generator) -> Floats:
    """Blocks of neighbours drawn anew, by (bin, draw); three numbers were fitted, so they are somewhat too small."""
    num = len(of_unit)
    starts = random.integers(0, num, (-(-num // _BLOCK), _DRAWS))
    indices = (starts[:, None, :] + np.arange(_BLOCK)[None, :, None]).reshape(-1, _DRAWS)[:num] % num
    return np.asarray(of_unit[indices] * (num / (num - 3)) ** 0.5)


def _crossing(at: Floats, means: Floats, target: float) -> float | None:
    below = np.flatnonzero(means <= target)
    if not len(below):
        return None
    first = int(below[0])
    if first == 0:
        return float(at[0])
    share = (means[first - 1] - target) / (means[first - 1] - means[first])
    return float(np.exp(np.log(at[first - 1]) + share * np.log(at[first] / at[first - 1])))


def _around(value: float, drawn: Floats) -> tuple[float, float]:
    low, high = (float(edge) for edge in np.quantile(drawn, [0.1, 0.9]))
    return min(low, value), max(high, value)


def _unreachable(target: float, floor: float, low: float, high: float, last: float) -> TopoutError:
    return TopoutError(
        f"The curve does not show that a loss of {target:g} can be reached.",
        why=f"It levels off at {floor:.4g} ({low:.4g} to {high:.4g}), and ends at {last:.4g}.",
        do=f"a target above {high:.4g}, a longer curve, or a training that goes lower (rate, decay, model, data)",
    )


def _notes(samples: float, seen: float, means: Floats, fitted: Floats, *, is_seen: bool) -> list[str]:
    if is_seen:
        return []
    found = []
    if samples > FAR * seen:
        found.append(
            f"The target lies {samples / seen:.0f} times beyond the samples that the curve has seen; beyond {FAR} "
            "times, take its interval for too narrow."
        )
    missed = float(np.sqrt(np.mean((fitted / means - 1) ** 2)))
    if missed > _ENOUGH_FIT:
        found.append(
            f"The law L_inf + A s^-a misses the curve by {missed:.0%}: a change of the rate, or a curve that is not "
            "smooth; the target is doubtful."
        )
    return found
