"""Laws through the points of a scaling study, each with how many numbers it took and how well it fits.

The laws of `baselines` and the step model of `step_model`, whose numbers mean something: how much slower the slowest
rank is, and how fast gradients travel.

    T(n) = alone + slowest of n ranks + all-reduce that backward does not hide + evaluation and saving

Of evaluation and saving a step has more on more ranks where one rank does them, once an epoch, and the batch grows: as
much more as was seen.

A law with as many numbers as there are points passes through all of them and says nothing, so it is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from topout.schema.measures import SERIAL_PHASES
from topout.study.baselines import Law, laws
from topout.study.job import Compute, Gradients, Input, Job
from topout.study.step_model import expected_step
from topout.study.system import Link, System

if TYPE_CHECKING:
    from topout.study.scaling import ScalingPoint

PARAMETERS = {"constant efficiency": 2, "Amdahl": 2, "USL": 3, "PMNF": 3, "step model": 3}
"""The rate of one rank counts: it is fitted by its own point alone."""
_BYTES = 100e6
"""Only its ratio to the link's speed matters, and that is fitted."""


@dataclass(frozen=True)
class FittedLaw:
    rate: Law
    """Samples a second by ranks."""
    parameters: int
    error: float
    """The largest relative one on the points."""


def fitted_laws(
    points: Sequence[ScalingPoint], rates: Mapping[int, float] | None = None
) -> tuple[dict[str, FittedLaw], dict[str, int]]:
    """(laws by name, numbers of those that were left out); `rates` instead of those measured, to draw others."""
    rates = rates or {point.ranks: point.samples_per_s for point in points}
    left_out = {name: count for name, count in PARAMETERS.items() if count >= len(rates)}
    found = {name: law for name, law in laws(rates).items() if name not in left_out}
    if "step model" not in left_out:
        found["step model"] = _step_model(points, rates)
    return {
        name: FittedLaw(law, PARAMETERS[name], max(abs(law(n) / rate - 1) for n, rate in rates.items()))
        for name, law in found.items()
    }, left_out


def _step_model(points: Sequence[ScalingPoint], rates: Mapping[int, float]) -> Law:
    from scipy.optimize import least_squares

    seconds = _seconds_of(points)
    share = _batch_share(points)

    def predicted(count: int, numbers: Sequence[float]) -> float:
        """Samples of a step grow with the batch of all ranks."""
        return rates[1] * count * share(count) * seconds(1, numbers) / seconds(count, numbers)

    def errors(numbers: Sequence[float]) -> list[float]:
        return [predicted(count, numbers) / rate - 1 for count, rate in rates.items() if count > 1]

    best = least_squares(errors, [0.02, 0.1], bounds=(0, np.inf), x_scale=[0.02, 0.1]).x
    return lambda count: predicted(count, best)


def _seconds_of(points: Sequence[ScalingPoint]) -> Callable[[int, Sequence[float]], float]:
    """Of a step by ranks, for a spread of the ranks and the seconds in which gradients cross a link."""
    one = next(point for point in points if point.ranks == 1)
    serial_s = _serial_of(points)
    busy_s = max(one.step_s - serial_s(1), 1e-9)
    backward = one.phases_s.get("backward") or busy_s * 2 / 3
    backward_share = min(1.0, backward / busy_s)
    share = _batch_share(points)

    def seconds(count: int, numbers: Sequence[float]) -> float:
        spread, crossing = float(numbers[0]), max(float(numbers[1]), 1e-9) * busy_s
        work_s = busy_s * share(count)
        compute = Compute(
            forward_s=work_s * (1 - backward_share), backward_s=work_s * backward_share, transient=spread
        )  # fmt: skip
        job = Job(title="", compute=compute, gradients=Gradients(bytes=_BYTES, tensors=1), input=Input(samples=1))
        link = Link(latency_s=0.0, bytes_per_s=_BYTES / crossing)
        system = System(title="", nodes=count, ranks_per_node=1, inside=link, between=link)
        return expected_step(job, system, count).seconds + serial_s(count)

    return seconds


def _serial_of(points: Sequence[ScalingPoint]) -> Callable[[int], float]:
    """Of a step by ranks: a line from the point of one rank through the others, that does not fall."""
    one = next(point for point in points if point.ranks == 1)
    one_s = sum(one.phases_s.get(name, 0.0) for name in SERIAL_PHASES)
    more = np.array([(point.ranks - 1, point.serial_s - one_s) for point in points if point.ranks > 1])
    slope_s = max(0.0, float(more[:, 0] @ more[:, 1] / (more[:, 0] @ more[:, 0]))) if len(more) else 0.0
    return lambda count: one_s + slope_s * (count - 1)


def _batch_share(points: Sequence[ScalingPoint]) -> Callable[[int], float]:
    """The batch of a rank against that of one alone: 1 in weak scaling, 1/n in strong."""
    batches = {point.ranks: point.batch for point in points}
    totals = {ranks * batch for ranks, batch in batches.items() if batch}
    is_strong = len(totals) == 1 and None not in batches.values() and len(batches) > 1
    return lambda count: 1 / count if is_strong else 1.0
