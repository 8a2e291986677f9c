"""Studies made of literals, for looking at their pages."""

from topout.cli.scale_page import scale_page
from topout.report.study_page import StudyPage
from topout.study.curve import Point
from topout.study.law_ranges import LawRange
from topout.study.plan import Choice, Plan
from topout.study.scaling import Scaling, ScalingPoint
from topout.study.step_model import Step


def scaling_point(
    ranks: int, rate: float, *, spread: float = 0.04, one: float = 1000.0, **phases_ms: float
) -> ScalingPoint:
    """`rate` samples a second give or take `spread`; the phases of a step in ms."""
    step_s = sum(phases_ms.values()) / 1e3
    wire = (phases_ms.get("wait", 0) + phases_ms.get("transfer", 0)) / 1e3
    return ScalingPoint(
        ranks=ranks,
        num_runs=3,
        batch=64 // ranks,
        samples_per_s=rate,
        low=rate * (1 - spread),
        high=rate * (1 + spread),
        speedup=rate / one,
        efficiency=rate / one / ranks,
        step_s=step_s,
        phases_s={name: value / 1e3 for name, value in phases_ms.items() if value},
        parallel_efficiency=1 - wire / step_s,
        load_balance=1 - phases_ms.get("wait", 0) / 1e3 / step_s,
        communication_efficiency=1 - phases_ms.get("transfer", 0) / 1e3 / step_s,
        peak_bytes=3 * 2**30,
    )


def bent_scaling(mode: str = "strong", notes: tuple[str, ...] = ("A note about `threads`.",)) -> Scaling:
    """Communication grows, an evaluation stays: 1,000 samples a second at one rank, 3,000 at eight."""
    always = {"optimizer": 2.0, "evaluation": 6.8}
    points = [
        scaling_point(1, 1000, input=1.2, forward=18.0, backward=36.0, **always),
        scaling_point(2, 1730, input=0.8, forward=9.0, backward=18.2, wait=0.5, transfer=2.0, **always),
        scaling_point(4, 2560, input=0.6, forward=4.6, backward=9.3, wait=0.7, transfer=2.6, **always),
        scaling_point(8, 3000, input=0.5, forward=2.4, backward=4.9, wait=0.9, transfer=3.9, **always),
    ]
    forecasts = {name: {16: 3300.0, 32: 3400.0} for name in ("constant efficiency", "Amdahl", "USL", "PMNF")}
    return Scaling(
        mode=mode, points=points, bends="evaluation and saving", knee=4, forecasts=forecasts, notes=list(notes)
    )


def scaled(*studies: Scaling, title: str = "train.py") -> StudyPage:
    """Their page; each law says what its forecast does, give or take a tenth."""
    ranges = [
        {
            name: [LawRange(ranks=n, value=rate, low=0.9 * rate, high=1.1 * rate) for n, rate in law.items()]
            for name, law in found.forecasts.items()
        }
        for found in studies
    ]
    return scale_page(studies, ranges, title, title)


def simulated(nodes: int, *, input_s: float = 0.0) -> Point:
    """Six ranks a node of 64 samples, 100 ms that compute and more that do not the more nodes there are."""
    grown = nodes.bit_length() - 1
    parts = {
        "compute": 0.100, "stragglers": 0.003 * grown, "negotiation": 0.0, "communication": 0.002 * grown, "cores": 0.0,
        "input": input_s * grown, "evaluation": 0.004, "checkpoint": 0.0, "failures": 0.0,
    }  # fmt: skip
    step = Step(parts, 6 * 64 * nodes)
    return Point(
        nodes=nodes,
        ranks=6 * nodes,
        step=step,
        samples_per_s=step.samples_per_s,
        low=step.samples_per_s * (1 - 0.01 * grown),
        high=step.samples_per_s * (1 + 0.01 * grown),
        efficiency=0.104 / step.seconds,
    )


def planned() -> Plan:
    """1 to 8 nodes: the fastest has eight, the cheapest one, and two are worth it."""
    hours = {1: 10.0, 2: 5.2, 4: 3.4, 8: 2.9}
    choices = [
        Choice(
            nodes=nodes,
            batch=384 * nodes,
            hours=taken,
            low_hours=0.9 * taken,
            high_hours=1.2 * taken,
            node_hours=nodes * taken,
            efficiency=10 / nodes / taken,
        )
        for nodes, taken in hours.items()
    ]
    return Plan(choices=choices, fastest=choices[3], cheapest=choices[0], best_value=choices[1], notes=["Tune again."])
