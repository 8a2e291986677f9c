"""Two runs side by side: is B slower than A, by how much, and in which phase?

    ratio = mean step time of B / mean step time of A, with a 95 % interval

Steps that take other numbers of samples are no equal amount of work: there the time a sample is judged, which is the
same ratio times samples of A / samples of B.

The interval comes from a circular block bootstrap over steps: neighbouring steps resemble each other (a checkpoint, a
noisy neighbour), so whole stretches of them are drawn, not single ones. What stretches miss makes it wider: likeness
across their ends, and that few of them do not tell the noise well. It covers the noise between the steps of these
two runs; not that of another day or another machine. For that, compare several runs.

References: D. N. Politis, J. P. Romano, A circular block-resampling procedure for stationary data, 1992;
N. M. Kiefer, T. J. Vogelsang, A new asymptotic theory for heteroskedasticity-autocorrelation robust tests, 2005.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topout.schema.errors import TopoutError

Steps = NDArray[np.float64]
"""[steps]: how long each step took"""
StepPhases = NDArray[np.float64]
"""[steps, phases]: mean over ranks"""

CONFIDENCE = 0.95
NUM_RESAMPLES = 2000
FEWEST_STEPS = 10
SEED = 20261115
RESOLUTION_NS = 1.0
"""The clock's; what lies below it is rounding of sums, not a difference."""
_EPOCH_ENDS = 0.01
"""What smaller batches at the ends of epochs may make of a mean."""
_FOURIER_ERROR = 1e-9
"""More than rounding makes of a correlation."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A number and the interval that holds it with 95 % confidence."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class PhaseDifference:
    """One phase's time a step, mean over ranks."""

    phase: str
    a_ns: float
    b_ns: float
    difference_ns: Estimate
    """B - A"""

    @property
    def is_found(self) -> bool:
        return self.difference_ns.low > RESOLUTION_NS or self.difference_ns.high < -RESOLUTION_NS


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """B against A."""

    a: str
    b: str
    result: str
    """`slower`, `faster` (B than A) or `no difference found`, by `judged`"""
    ratio: Estimate
    """Step time of B over that of A; 1.05 is 5 % slower."""
    sample_ratio: Estimate | None = None
    """The same of the time a sample, where a step of B takes other numbers of them than one of A."""
    a_samples_per_step: float | None = None
    """Of all ranks; None where not known in both runs."""
    b_samples_per_step: float | None = None
    a_step_ns: float
    b_step_ns: float
    a_num_steps: int
    b_num_steps: int
    phases: tuple[PhaseDifference, ...]
    seed: int = SEED
    num_resamples: int = NUM_RESAMPLES
    confidence: float = CONFIDENCE
    notes: tuple[str, ...] = ()

    @property
    def judged(self) -> Estimate:
        """What says whether B is slower: the time of equal work."""
        return self.sample_ratio or self.ratio

    def is_slower_by(self, threshold_share: float) -> bool:
        """Even the low end of the interval lies beyond the threshold."""
        return self.judged.low > 1 + threshold_share


def is_equal_work(samples: tuple[float, float]) -> bool:
    """Whether steps of A and of B take as many samples."""
    return abs(samples[0] - samples[1]) <= _EPOCH_ENDS * max(samples)


def compare_steps(
    a_step_ns: Steps,
    b_step_ns: Steps,
    a_phase_ns: StepPhases,
    b_phase_ns: StepPhases,
    *,
    phases: tuple[str, ...],
    names: tuple[str, str] = ("A", "B"),
    samples: tuple[float, float] | None = None,
    seed: int = SEED,
    num_resamples: int = NUM_RESAMPLES,
    notes: tuple[str, ...] = (),
) -> Comparison:
    """Compares step times and the phases inside them; the same seed gives the same intervals.

    `samples` are those of a step of A and of B, over all ranks.
    """
    for name, steps in zip(names, (a_step_ns, b_step_ns), strict=True):
        _need_steps(name, len(steps))
    random = np.random.default_rng(seed)
    a_means = _resampled_means(a_step_ns, a_phase_ns, random, num_resamples)
    b_means = _resampled_means(b_step_ns, b_phase_ns, random, num_resamples)
    differences = b_means - a_means
    a_step, b_step = float(a_step_ns.mean()), float(b_step_ns.mean())
    low, high = _ends(differences[:, 0])
    ratio = Estimate(value=b_step / a_step, low=float(np.exp(low)), high=float(np.exp(high)))
    sample_ratio = _per_sample(ratio, samples) if samples and not is_equal_work(samples) else None
    a_phase, b_phase = a_phase_ns.mean(axis=0), b_phase_ns.mean(axis=0)
    return Comparison(
        a=names[0],
        b=names[1],
        result=_result(sample_ratio or ratio, RESOLUTION_NS / a_step),
        ratio=ratio,
        sample_ratio=sample_ratio,
        a_samples_per_step=samples[0] if samples else None,
        b_samples_per_step=samples[1] if samples else None,
        a_step_ns=a_step,
        b_step_ns=b_step,
        a_num_steps=len(a_step_ns),
        b_num_steps=len(b_step_ns),
        phases=tuple(
            PhaseDifference(
                phase=phase,
                a_ns=float(a_phase[i]),
                b_ns=float(b_phase[i]),
                difference_ns=_estimate(float(b_phase[i] - a_phase[i]), differences[:, i + 1]),
            )
            for i, phase in enumerate(phases)
        ),
        seed=seed,
        num_resamples=num_resamples,
        notes=notes,
    )


def block_length(steps: Steps) -> int:
    """Steps a block: long enough that blocks are as good as independent.

    At least the cube root of the number of steps, which is of the best order for a mean; more where the
    autocorrelation reaches further; at most a quarter, so that there are blocks to choose from.
    """
    num_steps = len(steps)
    longest = num_steps // 4
    return int(min(max(_reach(steps, longest), np.ceil(num_steps ** (1 / 3))), longest))


def _reach(steps: Steps, longest: int) -> int:
    """The first lag at which steps no longer resemble each other, from 1 to `longest`.

    A Fourier transform gives the correlation at all lags at once, good to its rounding; those near the limit or below
    it are then looked at one by one, of which the first nearly always decides.
    """
    centred = steps - steps.mean()
    variance = float(centred @ centred)
    if variance == 0:
        return 1
    limit = 2 / np.sqrt(len(steps))
    # zeros behind the steps keep their end from meeting their beginning
    num_padded = 1 << (len(steps) + longest).bit_length()
    spectrum = np.fft.rfft(centred, num_padded)
    correlation = np.fft.irfft(spectrum * spectrum.conj(), num_padded)[1:longest] / variance
    for lag in (1 + np.flatnonzero(correlation < limit + _FOURIER_ERROR)).tolist():
        if float(centred[lag:] @ centred[:-lag]) / variance <= limit:
            return int(lag)
    return max(longest, 1)


def _resampled_means(
    step_ns: Steps, phase_ns: StepPhases, random: np.random.Generator, num_resamples: int
) -> StepPhases:
    """[resamples, 1 + phases]: logarithms of mean step times, and means of phases, drawn from the same blocks."""
    columns = np.column_stack([step_ns, phase_ns]).astype(np.float64)
    num_steps, length = len(columns), block_length(step_ns)
    num_blocks = num_steps // length
    # sums of all circular blocks at once, from one running sum
    running = np.cumsum(np.concatenate([np.zeros((1, columns.shape[1])), columns, columns[: length - 1]]), axis=0)
    block_sums = running[length:] - running[:-length]
    starts = random.integers(0, num_steps, size=(num_resamples, num_blocks))
    means: StepPhases = np.empty((num_resamples, columns.shape[1]))
    for column in range(columns.shape[1]):
        means[:, column] = block_sums[starts, column].sum(axis=1) / (num_blocks * length)
    centre = columns.mean(axis=0)
    # a logarithm cannot be widened to a time below 0
    means[:, 0], centre[0] = np.log(means[:, 0]), np.log(centre[0])
    widened: StepPhases = centre + _widening(columns, length, random, num_resamples) * (means - centre)
    return widened


def _widening(columns: StepPhases, length: int, random: np.random.Generator, num_resamples: int) -> StepPhases:
    """[resamples, columns]: times which a mean may lie further off than blocks of that length say.

    Blocks see a share of the variance of the mean: that of neighbours within them, for steps of an AR(1) process, and
    about the mean of these steps instead of the true one. It is known as well as that of so many independent values,
    which makes a t distribution of a normal one; overlapping blocks count for half as many again.
    """
    num_steps = len(columns)
    likeness = _likeness(columns)
    within = 1 - 2 * likeness * (1 - likeness**length) / (length * (1 - likeness**2))
    seen = within * (1 - length / num_steps)
    num_independent = num_steps * (1 - likeness) / (1 + likeness)
    freedom = np.clip(num_independent, 2, 1.5 * num_steps / length)
    spread = random.chisquare(freedom, size=(num_resamples, len(freedom))) / freedom
    return np.asarray(1 / np.sqrt(seen * spread))


def _likeness(columns: StepPhases) -> Steps:
    """[columns]: the correlation of neighbouring steps, from 0 to almost 1."""
    num_steps = len(columns)
    centred = columns - columns.mean(axis=0)
    variance = np.maximum((centred**2).sum(axis=0), np.finfo(np.float64).tiny)
    correlation = (centred[1:] * centred[:-1]).sum(axis=0) / variance
    # the mean goes with few steps, so that they look less alike than they are: M. G. Kendall, 1954
    return np.asarray(np.clip((num_steps * correlation + 1) / (num_steps - 3), 0, 1 - 1 / num_steps))


def _estimate(value: float, resampled: Steps) -> Estimate:
    low, high = _ends(resampled)
    return Estimate(value=value, low=low, high=high)


def _ends(resampled: Steps) -> tuple[float, float]:
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(resampled, [tail, 100 - tail])
    return float(low), float(high)


def _per_sample(ratio: Estimate, samples: tuple[float, float]) -> Estimate:
    times = samples[0] / samples[1]
    return Estimate(value=times * ratio.value, low=times * ratio.low, high=times * ratio.high)


def _result(ratio: Estimate, resolution: float) -> str:
    if ratio.low > 1 + resolution:
        return "slower"
    return "faster" if ratio.high < 1 - resolution else "no difference found"


def _need_steps(name: str, num_steps: int) -> None:
    if num_steps < FEWEST_STEPS:
        raise TopoutError(
            f"{name} has too few steps to compare.",
            why=f"{num_steps} steady steps were recorded, and an interval needs at least {FEWEST_STEPS}",
            do="run longer, for example topout run --steps 200 train.py",
        )
