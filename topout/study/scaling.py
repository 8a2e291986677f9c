"""Runs of one script on several numbers of ranks, put together: speed-up, efficiency, and which factor bends the curve.

Strong scaling keeps the batch of all ranks, so a step should take 1/n of the time; weak scaling keeps that of one rank,
so a step should take as long. Efficiency is throughput over n times that of the fewest ranks, under both. Every point
has the POP factors of its own runs: the one that falls is what bends the curve. Not for runs that differ in more than
their ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean, median, stdev

from topout.schema.errors import TopoutError
from topout.schema.measures import PHASES, Measures
from topout.study.baselines import laws

MODES = ("strong", "weak")
KNEE = 0.5
"""The knee: from here on the last doubling of ranks brought less than half of what it should."""
_T_80 = {1: 3.078, 2: 1.886, 3: 1.638, 4: 1.533, 5: 1.476, 6: 1.440, 7: 1.415, 8: 1.397, 9: 1.383}
"""Student's quantile for an 80 % interval by degrees of freedom."""


@dataclass(frozen=True, kw_only=True)
class Observed:
    """One run."""

    name: str
    script: str
    ranks: int
    batch: int | None
    """Of one rank."""
    measures: Measures

    @property
    def samples_per_s(self) -> float | None:
        return None if self.measures.step is None else self.measures.step.samples_per_s


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
    phases_s: dict[str, float]
    """Of a step, mean over ranks: a serial evaluation shows as a part that does not shrink."""
    parallel_efficiency: float | None
    load_balance: float | None
    communication_efficiency: float | None
    peak_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class Scaling:
    mode: str
    points: list[ScalingPoint]
    bends: str | None
    """The POP factor or phase that fell most from the first point to the last."""
    knee: int | None
    """The most ranks whose last doubling still paid; None where all did."""
    forecasts: dict[str, dict[int, float]]
    """Law -> samples a second at twice and four times the largest number of ranks."""
    notes: list[str]


def study(runs: Sequence[Observed], mode: str | None = None) -> Scaling:
    """`mode` is found out from the batches where it is left out."""
    usable = [run for run in runs if run.samples_per_s]
    notes = [f"{run.name} gave no throughput and is left out." for run in runs if not run.samples_per_s]
    mode = mode or _mode_of(usable)
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
        said = ", ".join(f"{ranks} ranks {count} each" for ranks, count in sorted(threads.items()))
        notes.append(f"Threads of a rank: {said}. More ranks share the same cores, so each computes more slowly.")
    for early, late in pairwise(points):
        if late.high < early.low:
            notes.append(f"{late.ranks} ranks were slower than {early.ranks}: not a curve that any law here has.")
    return Scaling(
        mode=mode,
        points=points,
        bends=_what_bends(points),
        knee=_knee(points),
        forecasts=_forecasts(points, first, notes),
        notes=notes,
    )


def _mode_of(runs: Sequence[Observed]) -> str:
    totals = {run.batch * run.ranks for run in runs if run.batch}
    return "strong" if len(totals) == 1 and len({run.ranks for run in runs}) > 1 else "weak"


def _check(runs: Sequence[Observed], mode: str) -> None:
    counts = sorted({run.ranks for run in runs})
    if len(counts) < 2:
        raise TopoutError(
            f"{len(counts)} number{'s'[: len(counts) != 1]} of ranks is no scaling study.",
            why="Speed-up is a ratio of two.",
            do="--ranks 1,2,4, or name run folders of several numbers of ranks",
        )
    scripts = sorted({run.script for run in runs})
    if len(scripts) > 1:
        raise TopoutError(
            f"These runs are of {len(scripts)} scripts: {', '.join(scripts)}.",
            why="A curve through different programs says nothing.",
            do="name runs of one script",
        )
    batches = {run.ranks: run.batch for run in runs if run.batch}
    keeps = {ranks * batch for ranks, batch in batches.items()} if mode == "strong" else set(batches.values())
    if len(keeps) > 1:
        seen = ", ".join(f"{ranks} ranks of {batch}" for ranks, batch in sorted(batches.items()))
        raise TopoutError(
            f"The batch does not follow {mode} scaling: {seen}.",
            why="Strong scaling keeps the batch of all ranks, weak scaling that of one.",
            do=f"--mode {'weak' if mode == 'strong' else 'strong'}, or run again with --batch-arg",
        )


def _point(ranks: int, runs: Sequence[Observed], reference: float) -> ScalingPoint:
    rates = [run.samples_per_s or 0.0 for run in runs]
    value = mean(rates)
    half = _T_80.get(len(rates) - 1, 1.3) * stdev(rates) / len(rates) ** 0.5 if len(rates) > 1 else 0.0
    step_s = median(run.measures.step.mean_ns for run in runs if run.measures.step) / 1e9
    shares = {name: mean(run.measures.shares.get(name, 0.0) for run in runs) for name in PHASES}
    pops = [run.measures.pop for run in runs if run.measures.pop]
    memory = [run.measures.memory.peak_device_bytes or run.measures.memory.peak_host_bytes or 0 for run in runs]
    return ScalingPoint(
        ranks=ranks,
        num_runs=len(runs),
        batch=runs[0].batch,
        samples_per_s=value,
        low=value - half,
        high=value + half,
        speedup=value / reference,
        efficiency=value / reference / ranks,
        step_s=step_s,
        phases_s={name: share * step_s for name, share in shares.items() if share},
        parallel_efficiency=mean(pop.parallel_efficiency for pop in pops) if pops else None,
        load_balance=mean(pop.load_balance for pop in pops) if pops else None,
        communication_efficiency=mean(pop.communication_efficiency for pop in pops) if pops else None,
        peak_bytes=max(memory) or None,
    )


def _what_bends(points: Sequence[ScalingPoint]) -> str | None:
    """What costs the last point most of the seconds that it should not take."""
    first, last = points[0], points[-1]
    if last.efficiency > 0.95:
        return None
    factors = {
        name: (getattr(last, name) or 1.0) / (getattr(first, name) or 1.0)
        for name in ("load_balance", "communication_efficiency")
    }
    # what neither balance nor communication explains is computing that became slower: cores or memory shared by more
    factors["computation"] = last.efficiency / max(1e-9, factors["load_balance"] * factors["communication_efficiency"])
    return min(factors, key=lambda name: factors[name]).replace("_", " ")


def _knee(points: Sequence[ScalingPoint]) -> int | None:
    for early, late in pairwise(points):
        gained = late.samples_per_s / early.samples_per_s - 1
        if gained < KNEE * (late.ranks / early.ranks - 1):
            return early.ranks
    return None


def _forecasts(points: Sequence[ScalingPoint], first: int, notes: list[str]) -> dict[str, dict[int, float]]:
    if first != 1:
        notes.append("No point of one rank, so no law was fitted.")
        return {}
    rates = {point.ranks: point.samples_per_s for point in points}
    largest = max(rates)
    return {name: {factor * largest: law(factor * largest) for factor in (2, 4)} for name, law in laws(rates).items()}
