"""A whole training with nodes that fail: how long it takes, drawn many times, and how often to save.

A node fails after an exponential time, so all of them together do at a rate of nodes / node_hours, and what was done
since the last checkpoint is done again after a restart. Failures forget the past, so a stretch between two checkpoints
is one try after another until one holds, and a training is as many such stretches as it has whole intervals, and a
shorter one for the rest; a thousand trainings are a few arrays. In closed form the mean of a stretch of t seconds is
e^(rate restart) (e^(rate t) - 1) / rate (Daly, 2006).

    best interval    sqrt(2 checkpoint / rate) - checkpoint          (Young, Daly)

A checkpoint that does not block holds only when it is written: that time counts as part of the restart. Not for
failures that come together (a switch, a power line): those hit one job less often and cost no more.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, expm1, sqrt

import numpy as np
from numpy.typing import NDArray

from topout.schema.errors import TopoutError
from topout.study.job import Job
from topout.study.step_model import Step, steps_between

DRAWS = 1000
_SAVING = "--what-if checkpoint.every_steps=4000 --what-if checkpoint.bytes=1e9 --what-if checkpoint.bytes_per_s=1e9"
_HOPELESS = 20.0
"""A stretch that needs e^20 tries does not end."""
_MOST_FAILURES = 3e7
"""Of all draws together; beyond, fewer are drawn."""


@dataclass(frozen=True, kw_only=True)
class Ageing:
    """A training with failures; hours."""

    nodes: int
    undisturbed_hours: float
    hours: float
    """The median of those drawn."""
    low_hours: float
    high_hours: float
    """Between them lie 80 of 100."""
    expected_hours: float
    """In closed form, the mean."""
    failures: float
    """Mean number."""
    interval_s: float
    """Between checkpoints as described; the whole training where there are none."""
    best_interval_s: float | None
    """None where a checkpoint costs nothing and is written at once."""
    best_hours: float | None
    """The mean, in closed form, with it."""


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """What lies between two checkpoints, and what a failure in it costs."""

    seconds: float
    restart_s: float
    rate: float
    """Failures a second of all nodes."""

    @property
    def expected_s(self) -> float:
        return exp(self.rate * self.restart_s) * expm1(self.rate * self.seconds) / self.rate

    @property
    def fails_at_first(self) -> float:
        """Chance of it."""
        return -expm1(-self.rate * self.seconds)

    @property
    def holds_again(self) -> float:
        """Chance that a try after a failure, restart included, is the last."""
        return exp(-self.rate * (self.restart_s + self.seconds))


def age(job: Job, step: Step, nodes: int, undisturbed_s: float, *, seed: int = 0, draws: int = DRAWS) -> Ageing:
    """`undisturbed_s`: how long the training would take if nothing failed, evaluation and checkpoints included."""
    failures, checkpoint = job.failures, job.checkpoint
    every_steps = steps_between(checkpoint, step.samples)
    if not failures.node_hours:
        raise TopoutError(
            "The job does not say how often nodes fail.",
            why="failures.node_hours is 0, so none does.",
            do="--what-if failures.node_hours=50000 --what-if failures.restart_s=300"
            + ("" if every_steps else f" {_SAVING}"),
        )
    rate = nodes / (failures.node_hours * 3600)
    step_s = step.seconds - step.parts["failures"]
    writing_s = checkpoint.bytes / checkpoint.bytes_per_s if checkpoint.bytes_per_s else 0.0
    saving_s = writing_s if checkpoint.is_blocking else 0.0
    restart_s = failures.restart_s + (0.0 if checkpoint.is_blocking else writing_s)
    interval_s = min(undisturbed_s, step_s * every_steps) if every_steps else undisturbed_s
    stretch = Stretch(seconds=interval_s, restart_s=restart_s, rate=rate)
    _check(stretch, nodes, saving_s)
    stretches = _stretches(stretch, undisturbed_s)
    drawn_s, counts = _draw(stretches, np.random.default_rng(seed), draws)
    low, middle, high = (float(edge) / 3600 for edge in np.quantile(drawn_s, [0.1, 0.5, 0.9]))
    # of the undisturbed time, what is not spent on checkpoints stays the same whatever the interval
    working_s = undisturbed_s * (1 - (saving_s / interval_s if every_steps else 0.0))
    best_s = best_interval_s(rate, saving_s, writing_s)
    best = None
    if best_s is not None:
        with_saving_s = best_s + saving_s
        whole = Stretch(seconds=with_saving_s, restart_s=restart_s, rate=rate)
        best = _stretches(whole, working_s * with_saving_s / best_s)
    return Ageing(
        nodes=nodes,
        undisturbed_hours=undisturbed_s / 3600,
        hours=middle,
        low_hours=low,
        high_hours=high,
        expected_hours=_expected_hours(stretches),
        failures=float(counts.mean()),
        interval_s=interval_s,
        best_interval_s=best_s,
        best_hours=None if best is None else _expected_hours(best),
    )


def best_interval_s(rate: float, saving_s: float, writing_s: float) -> float | None:
    """Of work between two checkpoints. One that does not block may follow as soon as the last is written."""
    if saving_s <= 0:
        return writing_s or None
    # Daly's first order; for checkpoints that take as long as nodes live, the mean life
    return max(saving_s, sqrt(2 * saving_s / rate) - saving_s) if saving_s < 1 / (2 * rate) else 1 / rate


def _stretches(whole: Stretch, undisturbed_s: float) -> list[tuple[int, Stretch]]:
    """How many there are of each length: whole ones, and the rest where a training is no multiple of them."""
    num, rest_s = divmod(undisturbed_s, whole.seconds)
    cut = [(int(num), whole), (1, replace(whole, seconds=rest_s))]
    return [(times, stretch) for times, stretch in cut if times and stretch.seconds]


def _expected_hours(stretches: Sequence[tuple[int, Stretch]]) -> float:
    return sum(num * stretch.expected_s for num, stretch in stretches) / 3600


def _draw(
    stretches: Sequence[tuple[int, Stretch]], random: np.random.Generator, draws: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Seconds and failures of each training."""
    mean = sum(num * stretch.fails_at_first / stretch.holds_again for num, stretch in stretches)
    draws = int(max(20, min(draws, _MOST_FAILURES / max(1.0, mean))))
    seconds, failures = np.zeros(draws), np.zeros(draws, dtype=np.int64)
    for num, stretch in stretches:
        firsts = random.binomial(num, stretch.fails_at_first, draws)
        # tries that fail before the one that holds, of every stretch that failed at first
        others = np.where(firsts > 0, random.negative_binomial(np.maximum(firsts, 1), stretch.holds_again), 0)
        again_s = stretch.restart_s + stretch.seconds
        seconds += num * stretch.seconds + firsts * stretch.restart_s
        seconds += _lost(firsts, stretch.seconds, stretch.rate, random) + _lost(others, again_s, stretch.rate, random)
        failures += firsts + others
    return seconds, failures


def _lost(counts: NDArray[np.int64], limit_s: float, rate: float, random: np.random.Generator) -> NDArray[np.float64]:
    """What failures lose that come before `limit_s`: exponential times, cut off there, summed for each training."""
    total = int(counts.sum())
    times = -np.log1p(random.random(total) * expm1(-rate * limit_s)) / rate
    owner = np.repeat(np.arange(len(counts)), counts)
    return np.asarray(np.bincount(owner, times, minlength=len(counts)), dtype=np.float64)


def _check(stretch: Stretch, nodes: int, saving_s: float) -> None:
    tries = stretch.rate * (stretch.seconds + stretch.restart_s)
    if tries <= _HOPELESS:
        return
    shortest = best_interval_s(stretch.rate, saving_s, 0.0)
    raise TopoutError(
        f"On {nodes:,} nodes this training does not end.",
        why=f"A failure comes every {1 / stretch.rate:,.0f} s, and checkpoints every {stretch.seconds:,.0f} s.",
        do=f"checkpoint.every_steps so that one comes every {shortest:,.0f} s" if shortest else
        f"say how often it saves: {_SAVING}",
    )  # fmt: skip
