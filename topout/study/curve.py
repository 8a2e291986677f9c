"""Throughput over nodes, each point simulated, with its 80 % interval and where the time of a step goes.

The interval comes of the ranges in the descriptions: many descriptions that they allow are drawn, and the step of each
is computed in closed form; what the model itself is known to be off by comes on top. Numbers without a range add
nothing to it; a description without any range has no interval, and it says so. An efficiency is a ratio of two rates:
what makes both slower cancels, so its interval comes of the ratio under each description drawn.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topout.schema.errors import TopoutError
from topout.schema.hardware import find_row
from topout.study.description import Ranged
from topout.study.job import Job
from topout.study.simulate import Slow, simulate
from topout.study.step_model import Step, expected_step, steps_between
from topout.study.storage import unknown_storage
from topout.study.system import System

DRAWS = 200
BETWEEN_RUNS = 0.01
OWN_ERROR = 0.35
"""What the model itself is off by though every number were exact, as the half of an 80 % interval: so much of a step
from run to run, and so much of what is not computing. Seen on live runs of `benchmarks/scaling.py`."""
MOST_RANKS = 4_000_000
"""Each is simulated: so many take a minute or two."""
_MOST = 1e18
"""Seconds, or samples a second."""
FAR = 4
"""So many times beyond the calibrated nodes a prediction is an extrapolation that deserves a warning."""


@dataclass(frozen=True, kw_only=True)
class Point:
    nodes: int
    ranks: int
    step: Step
    samples_per_s: float
    low: float
    high: float
    efficiency: float
    """Against one node."""
    efficiency_range: tuple[float, float] | None = None
    """80 %; None: not known."""

    @property
    def edges(self) -> tuple[float, ...]:
        """Of its intervals, with what lies in them."""
        return self.low, self.samples_per_s, self.high, self.efficiency, *(self.efficiency_range or ())


def curve(
    job: Ranged[Job],
    system: Ranged[System],
    nodes: Sequence[int],
    *,
    steps: int = 200,
    seed: int = 0,
    slow: Slow | None = None,
) -> list[Point]:
    check_nodes(nodes, system.value)
    try:
        # what overflows is refused below
        with np.errstate(all="ignore"):
            points = _points(job, system, nodes, steps=steps, seed=seed, slow=slow)
    except ArithmeticError as error:
        raise beyond_numbers() from error
    if not all(figure < _MOST for point in points for figure in (point.step.seconds, *point.edges)):
        raise beyond_numbers()
    return points


def _points(
    job: Ranged[Job], system: Ranged[System], nodes: Sequence[int], *, steps: int, seed: int, slow: Slow | None
) -> list[Point]:
    one = simulate(job.value, system.value, 1, steps=steps, seed=seed).step
    random = np.random.default_rng(seed)
    drawn = [(job.draw(random), system.draw(random)) for _ in range(DRAWS)] if job.ranges or system.ranges else []
    alone = _drawn_rates(job.value, system.value, 1, drawn)
    points = []
    for count in nodes:
        step = simulate(job.value, system.value, count, steps=steps, seed=seed, slow=slow).step
        rates = _drawn_rates(job.value, system.value, count, drawn)
        low, high = interval(step.samples_per_s, rates, own_error(step))
        efficiency = step.samples_per_s / count / one.samples_per_s
        # nothing says that the model errs alike for one node and for several; one against itself is exact
        own = float(np.hypot(own_error(step), own_error(one))) if count > 1 else 0.0
        points.append(
            Point(
                nodes=count,
                ranks=count * system.value.ranks_per_node,
                step=step,
                samples_per_s=step.samples_per_s,
                low=low,
                high=high,
                efficiency=efficiency,
                efficiency_range=interval(efficiency, rates / alone, own) if drawn else None,
            )
        )
    return points


def _drawn_rates(job: Job, system: System, nodes: int, drawn: Sequence[tuple[Job, System]]) -> NDArray[np.float64]:
    """Of each drawn one, as many times the expected rate."""
    expected = expected_step(job, system, nodes).samples_per_s
    return np.array([expected_step(one, other, nodes).samples_per_s / expected for one, other in drawn])


def interval(value: float, drawn: NDArray[np.float64], own: float) -> tuple[float, float]:
    """An 80 % interval: how far the drawn ones lie from 1, and what the model itself is off by."""
    if not len(drawn):
        return value, value
    below, above = 1 - float(np.quantile(drawn, 0.1)), float(np.quantile(drawn, 0.9)) - 1
    # both together can exceed 1, and no rate is negative
    return value * max(0.0, 1 - float(np.hypot(below, own))), value * (1 + float(np.hypot(above, own)))


def own_error(step: Step) -> float:
    """Of the step, relative: computing was measured, all else is the model's."""
    return float(np.hypot(BETWEEN_RUNS, OWN_ERROR * (1 - step.parts["compute"] / step.seconds)))


def check_nodes(nodes: Sequence[int], system: System) -> None:
    if min(nodes) < 1:
        raise TopoutError(f"{min(nodes)} nodes are none.", why="A job runs on one at least.", do="--nodes 1..16")
    if max(nodes) > system.nodes:
        raise TopoutError(
            f"{max(nodes):,} nodes are more than {system.title} has.",
            why=f"It has {system.nodes:,}.",
            do=f"--nodes 1..{system.nodes}, or --what-if nodes={max(nodes)} for a larger one of the kind",
        )
    ranks = max(nodes) * system.ranks_per_node
    if ranks > MOST_RANKS:
        raise TopoutError(
            f"{ranks:,} ranks are too many.",
            why=f"{max(nodes):,} nodes with {system.ranks_per_node:,} each; no machine has more than {MOST_RANKS:,}.",
            do=f"--nodes 1..{MOST_RANKS // system.ranks_per_node}"
            if system.ranks_per_node <= MOST_RANKS
            else "--what-if ranks_per_node=8",
        )


def beyond_numbers() -> TopoutError:
    return TopoutError(
        "What this job would do on this system cannot be computed.",
        why="No number comes out, or one beyond all reason: some value is far too small or far too large.",
        do="mend it where it stands: in the job, in the system, in a --what-if, or in the samples to train",
    )


def warnings(
    job: Ranged[Job], system: Ranged[System], nodes: Sequence[int], *, is_scaled: bool = False, can_scale: bool = True
) -> list[str]:
    """`is_scaled`: to another device than the system's, because that was asked for; `can_scale`: it could be."""
    found = []
    known = job.value.calibrated_nodes
    if known and max(nodes) > FAR * known:
        found.append(
            f"{max(nodes):,} nodes are {max(nodes) / known:.3g} times the {known:,} that the job's numbers come from; "
            f"beyond {FAR} times, take the interval for too narrow."
        )
    if not known:
        found.append("The job does not say on how many nodes its numbers were measured (calibrated_nodes).")
    if not is_scaled:
        found.extend(_other_device(job.value, system.value, can_scale=can_scale))
    given = job.value.input
    if given.source != "none" and not given.sample_bytes and not given.loader_samples_per_s:
        found.append(
            f"input.source is {given.source}, and input.sample_bytes is 0: reading costs nothing here. Set it."
        )
    found.extend(
        f"input.source is {given.source}, and the system does not say how fast [{name}] is: it counts as no limit."
        for name in unknown_storage(given, system.value)
    )
    if job.value.failures.node_hours and not steps_between(job.value.checkpoint, 1):
        found.append(
            "Nodes fail and checkpoint.every_steps is 0: a failure then loses all of the training, which is not in "
            "these figures. topout simulate --failures 30h says what it costs."
        )
    if not job.ranges and not system.ranges:
        found.append("No number has a range, so there is no interval; write {value, low, high} for those you doubt.")
    return found


def _other_device(job: Job, system: System, *, can_scale: bool) -> list[str]:
    measured, there = find_row(job.device), find_row(system.device)
    if not system.device or job.device == system.device or (measured is not None and measured is there):
        return []
    where = f"The job was measured on {job.device}" if job.device else "The job does not say what it was measured on"
    do = f"Calibrate a run on {system.device} for those there."
    if can_scale and measured is not None and there is not None:
        do = f"topout simulate --device '{there.name}' scales them."
    return [f"{where}, and {system.title} has {system.device}: its seconds are not scaled. {do}"]


def node_counts(text: str) -> list[int]:
    """`1,2,4`, `16`, or `1..4608`: powers of two and the last."""
    try:
        if ".." in text:
            first, last = (int(part) for part in text.split(".."))
            powers = [2**power for power in range(31) if first <= 2**power <= last]
            return sorted({first, *powers, last}) if first <= last else _refuse(text)
        return [int(part) for part in text.split(",")]
    except ValueError:
        return _refuse(text)


def _refuse(text: str) -> list[int]:
    raise TopoutError(f"{text!r} are no node counts.", why="They are 16, or 1,2,4, or 1..64.", do="--nodes 1..64")
