"""The fewest steps to a target at one batch size, over learning rates: each size gets the rate that suits it.

Rates are powers of two times the given one. The search begins where the last size was best, at that rate, at its
square-root and at its linear rule, and goes on until the best rate has a worse one on either side: a size that was
only given the wrong rates would look as if it did not pay. A run stops when it can no longer win.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from topout.train.probe.branch import Path, Start, run

MOST_TRIES = 9
SLACK = 1.3
"""One run may take so much longer than the best rate's mean before it has lost: runs differ by their samples."""


@dataclass(frozen=True, kw_only=True)
class Best:
    """`exponent`: the rate that reached the target in the fewest steps is the given one times 2 ** exponent."""

    runs: tuple[float, ...]
    """Steps to the target, one entry a seed."""
    exponent: int

    @property
    def steps(self) -> float:
        return mean(self.runs)


def fewest_steps(
    start: Start, batch: int, exponents: Iterable[int], *, cap: float, target: float, seeds: Sequence[int]
) -> Best | None:
    """None where no rate reached the target within `cap` steps with every seed."""
    found: dict[int, tuple[float, ...]] = {}

    def attempt(exponent: int) -> float:
        most = min([cap, *(mean(runs) for runs in found.values() if runs)]) * SLACK
        runs: list[float] = []
        for seed in seeds:
            path = run(start, batch, 2.0**exponent, most_steps=math.ceil(most) + 3, target=target, seed=seed)
            if path.reached is None:
                runs = []  # a rate that fails now and then is too high
                break
            runs.append(path.reached)
        found[exponent] = tuple(runs)
        return mean(runs) if runs else math.inf

    exponent = enclosed(exponents, attempt)
    return Best(runs=found[exponent], exponent=exponent) if found[exponent] else None


def mean(steps: Sequence[float]) -> float:
    """Of logarithms, in which the curve is fitted."""
    return math.exp(sum(map(math.log, steps)) / len(steps))


def enclosed(exponents: Iterable[int], attempt: Callable[[int], float]) -> int:
    """The exponent with the least result, which has a worse neighbour on either side unless tries ran out."""
    results: dict[int, float] = {}
    for exponent in exponents:
        results[exponent] = attempt(exponent)
    while len(results) < MOST_TRIES:
        best = min(results, key=lambda exponent: (results[exponent], exponent))
        if math.isinf(results[best]):
            best = min(results)  # none got there: too high a rate is the commoner reason
        open_sides = [side for side in (best - 1, best + 1) if side not in results]
        if not open_sides:
            return best
        if math.isinf(results[best]) and best - 1 in open_sides:
            open_sides = [best - 1]
        results[open_sides[0]] = attempt(open_sides[0])
    return min(results, key=lambda exponent: (results[exponent], exponent))


def baseline(start: Start, batch: int, steps: int, seed: int) -> tuple[float, int, float]:
    """A target, the exponent of the rate that came lowest at the smallest batch, and the loss at the start.

    The target is what that rate has come to after four fifths of `steps`: the last fifth is left for runs that take a
    little longer.
    """
    paths: dict[int, Path] = {}

    def attempt(exponent: int) -> float:
        paths[exponent] = run(start, batch, 2.0**exponent, most_steps=steps, target=None, seed=seed)
        last = paths[exponent].levels[-1]
        return last if math.isfinite(last) and paths[exponent].steps[-1] == steps else math.inf

    exponent = enclosed((0, 1, -1), attempt)
    best = paths[exponent]
    at = max(index for index, step in enumerate(best.steps) if step <= 0.8 * steps)
    return best.levels[at], exponent, best.losses[0]
