"""Runs of one script on several numbers of ranks, put together: speed-up, efficiency, and which factor bends the curve.

Strong scaling keeps the batch of all ranks, so a step should take 1/n of the time; weak scaling keeps that of one rank,
so a step should take as long. Efficiency is throughput over n times that of the fewest ranks, under both. Every point
has the POP factors of its own runs: the one that falls is what bends the curve. What they leave unexplained is told
apart by phases, since POP counts input and evaluation as useful. Not for runs that differ in more than their ranks.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import mean, median, stdev

from topout.schema.counted import counted
from topout.schema.errors import ExitCode, TopoutError
from topout.schema.measures import COMMUNICATION_PHASES, PHASES, SERIAL_PHASES, Measures
from topout.study.description import NORMAL_TENTH
from topout.study.point_laws import FittedLaw, fitted_laws

MODES = ("strong", "weak")
KNEE = 0.5
"""The knee: from here on the last doubling of ranks brought less than half of what it should."""
SUPERLINEAR = 1.1
"""More than this per rank needs an explanation."""
_T_80 = {1: 3.078, 2: 1.886, 3: 1.638, 4: 1.533, 5: 1.476, 6: 1.440, 7: 1.415, 8: 1.397, 9: 1.383}
"""Student's quantile for an 80 % interval by degrees of freedom; `_t_80` has the others."""
_SCALES = 0.95
"""Efficiency from which on nothing bends the curve."""
STILL_RUNNING = "is still running"
_EXPLAINING = ("load_balance", "communication_efficiency")
_UNEXPLAINED = {
    "input": ("input",),
    "evaluation and saving": SERIAL_PHASES,
    "computation": tuple(name for name in PHASES if name not in ("input", *SERIAL_PHASES, *COMMUNICATION_PHASES)),
}
"""What POP counts as useful, by what may not scale in it."""


@dataclass(frozen=True, kw_only=True)
class Observed:
    """One run."""

    name: str
    script: str
    ranks: int
    batch: int | None
    """Of one rank."""
    measures: Measures
    failed: str | None = None
    """How it ended, where that was no good end."""
    folder: str | None = None

    @property
    def samples_per_s(self) -> float | None:
        return None if self.measures.step is None else self.measures.step.samples_per_s

    @property
    def is_usable(self) -> bool:
        return bool(self.samples_per_s) and not self.failed


@dataclass(frozen=True, kw_only=True)
class ScalingPoint:
    ranks: int
    num_runs: int
    batch: int | None
    samples_per_s: float
    low: float
    high: float
    """80 % interval of the mean over runs; the value itself where there is one run."""
    speedup: float
    efficiency: float
    step_s: float
    """Of the window that shares refer to: with every evaluation and save in it, also those after the last step."""
    phases_s: dict[str, float]
    """Of such a step, mean over ranks: a serial evaluation shows as a part that does not shrink."""
    parallel_efficiency: float | None
    load_balance: float | None
    communication_efficiency: float | None
    peak_bytes: int | None
    """Of the rank that held most, on its device where it has one."""
    is_device_memory: bool = False
    serial_s: float = 0.0
    """Evaluation and saving of such a step, on the rank that did most of it: the others wait for it."""


@dataclass(frozen=True, kw_only=True)
class Scaling:
    mode: str
    points: list[ScalingPoint]
    bends: str | None
    """What costs the last point most: a POP factor, or a name of `_UNEXPLAINED`; None: nothing, or it was not seen."""
    knee: int | None
    """The most ranks whose last doubling still paid; None where all did."""
    forecasts: dict[str, dict[int, float]]
    """Law -> samples a second at twice and four times the largest number of ranks."""
    notes: list[str]
    parameters: dict[str, int] = field(default_factory=dict)
    """Law -> how many numbers of it were fitted, the rate of one rank among them."""
    errors: dict[str, float] = field(default_factory=dict)
    """Law -> its largest relative error on the points."""

    @property
    def is_bend_unseen(self) -> bool:
        """The curve bends, and the factors that would say why are not known."""
        return self.points[-1].efficiency <= _SCALES and bool(_unseen(self.points))


def study(runs: Sequence[Observed], mode: str | None = None, left_out: Sequence[str] = ()) -> Scaling:
    """`mode` is found out from the batches where it is left out; `left_out` says why there is no run of some points."""
    usable = [run for run in runs if run.is_usable]
    notes = _unusable(runs)
    mode = mode or _mode_of(usable)
    check_counts(runs, left_out, f"{mode} scaling")
    _check(usable, mode)
    by_ranks: dict[int, list[Observed]] = {}
    for run in sorted(usable, key=lambda run: run.ranks):
        by_ranks.setdefault(run.ranks, []).append(run)
    first = min(by_ranks)
    reference = mean(run.samples_per_s or 0.0 for run in by_ranks[first]) / first
    points = [_point(ranks, found, reference) for ranks, found in by_ranks.items()]
    if any(point.num_runs < 3 for point in points):
        notes.append("Fewer than three runs at a point: its interval says little. --repeats 3")
    threads = {run.ranks: run.measures.environment.threads_per_rank for run in usable}
    if len(set(threads.values()) - {None}) > 1:
        said = ", ".join(f"{counted(ranks, 'rank')} {count} each" for ranks, count in sorted(threads.items()))
        notes.append(f"Threads of a rank: {said}. More ranks share the same cores, so each computes more slowly.")
    notes += [_dip(early, late) for early, late in pairwise(points) if late.samples_per_s < early.samples_per_s]
    notes += [_superlinear(point, first) for point in points if point.efficiency > SUPERLINEAR]
    if points[-1].efficiency <= _SCALES and (unseen := _unseen(points)):
        notes.append(f"What bends the curve is not known: communication was not seen at {unseen} ranks.")
    fitted = _fitted(points, notes)
    largest = max(by_ranks)
    return Scaling(
        mode=mode,
        points=points,
        bends=_what_bends(points, mode),
        knee=_knee(points),
        forecasts={
            name: {factor * largest: law.rate(factor * largest) for factor in (2, 4)} for name, law in fitted.items()
        },
        notes=notes,
        parameters={name: law.parameters for name, law in fitted.items()},
        errors={name: law.error for name, law in fitted.items()},
    )


def _mode_of(runs: Sequence[Observed]) -> str:
    totals = {run.batch * run.ranks for run in runs if run.batch}
    return "strong" if len(totals) == 1 and len({run.ranks for run in runs}) > 1 else "weak"


def _unusable(runs: Sequence[Observed]) -> list[str]:
    return [
        f"{run.name} ({counted(run.ranks, 'rank')}) {run.failed or 'gave no throughput'} and is left out."
        for run in runs
        if not run.is_usable
    ]


def check_counts(runs: Sequence[Observed], left_out: Sequence[str] = (), what: str = "a scaling study") -> None:
    """Two numbers of ranks at least; where there were more to begin with, what became of the others."""
    counts = {run.ranks for run in runs if run.is_usable}
    if len(counts) > 1:
        return
    missed = [*left_out, *_unusable(runs)]
    if not missed:
        raise TopoutError(
            f"{counted(len(counts), 'number')} of ranks is no scaling study.",
            why="Speed-up is a ratio of two.",
            do="--ranks 1,2,4, or name run folders of several numbers of ranks",
        )
    failures = [run.failed for run in runs if run.failed]
    if failures and not left_out and all(how == STILL_RUNNING for how in failures):
        do, exit_code = "wait until they have ended: topout watch RUN", ExitCode.USAGE
    elif failures or left_out:
        do, exit_code = "run one of these points alone and read why: topout run -n RANKS SCRIPT", ExitCode.JOB_FAILED
    else:
        do = "feed the script from a DataLoader or topout.Loader, whose batches tell how many samples they hold"
        exit_code = ExitCode.USAGE
    raise TopoutError(
        f"Fewer than two numbers of ranks gave a throughput for {what}.",
        why="; ".join(dict.fromkeys(text.rstrip(".") for text in missed)) + ".",
        do=do,
        exit_code=exit_code,
    )


def _check(runs: Sequence[Observed], mode: str) -> None:
    scripts = sorted({run.script for run in runs})
    if len(scripts) > 1:
        raise TopoutError(
            f"These runs are of {len(scripts)} scripts: {', '.join(scripts)}.",
            why="A curve through different programs says nothing.",
            do="name runs of one script",
        )
    # pairs, since runs of one number of ranks may differ as well
    batches = {(run.ranks, run.batch) for run in runs if run.batch}
    keeps = {ranks * batch if mode == "strong" else batch for ranks, batch in batches}
    if len(keeps) > 1:
        seen = ", ".join(f"{counted(ranks, 'rank')} of {batch}" for ranks, batch in sorted(batches))
        raise TopoutError(
            f"The batch does not follow {mode} scaling: {seen}.",
            why="Strong scaling keeps the batch of all ranks, weak scaling that of one.",
            do=f"--mode {'weak' if mode == 'strong' else 'strong'}, both for runs of either, or run again with --batch",
        )


def _point(ranks: int, runs: Sequence[Observed], reference: float) -> ScalingPoint:
    rates = [run.samples_per_s or 0.0 for run in runs]
    value = mean(rates)
    half = _t_80(len(rates) - 1) * stdev(rates) / len(rates) ** 0.5 if len(rates) > 1 else 0.0
    # not the mean step, which ends with the last optimizer step: shares are of the whole window
    windows = [run.measures.window for run in runs if run.measures.window]
    step_s = median(window.elapsed_ns / window.num_steps for window in windows) / 1e9
    shares = {name: mean(run.measures.shares.get(name, 0.0) for run in runs) for name in PHASES}
    pops = [run.measures.pop for run in runs if run.measures.pop]
    device = max((run.measures.memory.peak_device_bytes or 0 for run in runs), default=0)
    host = max((run.measures.memory.peak_host_bytes or 0 for run in runs), default=0)
    return ScalingPoint(
        ranks=ranks,
        num_runs=len(runs),
        batch=runs[0].batch,
        samples_per_s=value,
        # a few runs far apart say nothing of how slow it can be, but not less than nothing
        low=max(0.0, value - half),
        high=value + half,
        speedup=value / reference,
        efficiency=value / reference / ranks,
        step_s=step_s,
        phases_s={name: share * step_s for name, share in shares.items() if share},
        parallel_efficiency=_mean_of(pop.parallel_efficiency for pop in pops),
        load_balance=_mean_of(pop.load_balance for pop in pops),
        communication_efficiency=_mean_of(pop.communication_efficiency for pop in pops),
        peak_bytes=device or host or None,
        is_device_memory=device > 0,
        serial_s=step_s * mean(_serial_share(run.measures) for run in runs),
    )


def _serial_share(measures: Measures) -> float:
    return max((sum(rank.shares.get(name, 0.0) for name in SERIAL_PHASES) for rank in measures.ranks), default=0.0)


def _t_80(degrees: int) -> float:
    """Beyond the table by the expansion of Cornish and Fisher, which is off by 0.0003 at most."""
    z = NORMAL_TENTH
    further = z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
    return _T_80.get(degrees, further)


def _mean_of(factors: Iterable[float | None]) -> float | None:
    """Of those that are known."""
    known = [factor for factor in factors if factor is not None]
    return mean(known) if known else None


def _unseen(points: Sequence[ScalingPoint]) -> int | None:
    """Ranks of the first or the last point where a factor is not known; one rank has nobody to wait for."""
    ends = (points[0], points[-1])
    return next((p.ranks for p in ends if p.ranks > 1 and None in [getattr(p, name) for name in _EXPLAINING]), None)


def _what_bends(points: Sequence[ScalingPoint], mode: str) -> str | None:
    """What costs the last point most of the seconds that it should not take."""
    first, last = points[0], points[-1]
    if last.efficiency > _SCALES or _unseen(points):
        return None
    factors = {name: (getattr(last, name) or 1.0) / (getattr(first, name) or 1.0) for name in _EXPLAINING}
    rest = last.efficiency / max(1e-9, factors["load_balance"] * factors["communication_efficiency"])
    factors |= {name: rest**share for name, share in _unexplained(first, last, mode).items()}
    return min(factors, key=lambda name: factors[name]).replace("_", " ")


def _unexplained(first: ScalingPoint, last: ScalingPoint, mode: str) -> dict[str, float]:
    """Share of what neither balance nor communication explains, by the seconds that a step should not take."""
    ideal = first.ranks / last.ranks if mode == "strong" else 1.0
    excess_s = {
        name: max(0.0, sum(last.phases_s.get(phase, 0.0) - ideal * first.phases_s.get(phase, 0.0) for phase in phases))
        for name, phases in _UNEXPLAINED.items()
    }
    whole_s = sum(excess_s.values())
    # nothing seen by phases: computing that became slower, since more share the cores or the memory
    return {name: part / whole_s for name, part in excess_s.items()} if whole_s else {"computation": 1.0}


def _knee(points: Sequence[ScalingPoint]) -> int | None:
    for early, late in pairwise(points):
        gained = late.samples_per_s / early.samples_per_s - 1
        if gained < KNEE * (late.ranks / early.ranks - 1):
            return early.ranks
    return None


def _dip(early: ScalingPoint, late: ScalingPoint) -> str:
    """More ranks and less throughput: whether that is more than the runs differ by among themselves."""
    said = f"{late.ranks} ranks were slower than {early.ranks}: {_with_range(late)} samples/s against "
    said += _with_range(early)
    if early.num_runs < 2 or late.num_runs < 2:
        return f"{said}. Of single runs nobody can tell whether that is chance. --repeats 3"
    if late.high < early.low:
        return f"{said}. That is more than the spread of the runs; only USL and PMNF can bend down."
    return f"{said}. That is within the spread of the runs, so it may be chance; more --repeats would tell."


def _superlinear(point: ScalingPoint, first: int) -> str:
    return (
        f"{point.ranks} ranks are {point.efficiency:.2f} times as efficient as {first}. Either what a rank works on "
        f"fits a faster memory there, or the runs of {first} were held up by something else: look at those first."
    )


def _with_range(point: ScalingPoint) -> str:
    return f"{point.samples_per_s:,.1f} ({point.low:,.1f} to {point.high:,.1f})"


def _fitted(points: Sequence[ScalingPoint], notes: list[str]) -> dict[str, FittedLaw]:
    if points[0].ranks != 1:
        notes.append("No point of one rank, so no law was fitted.")
        return {}
    found, left_out = fitted_laws(points)
    if left_out:
        said = ", ".join(f"{name} ({count})" for name, count in left_out.items())
        notes.append(f"Left out, since they have as many numbers as there are points ({len(points)}) or more: {said}.")
    return found
