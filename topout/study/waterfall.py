"""From the step that a rank alone would take to the one predicted, part by part; they add up, as printed too.

The spread that stays with a rank and the one of every step act together, as their squares do, so the first is what
ranks would wait for if every step were like the last, and the second what comes on top.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from topout.study.job import Job
from topout.study.simulate import Slow, simulate
from topout.study.step_model import Step
from topout.study.system import System


@dataclass(frozen=True, kw_only=True)
class Bar:
    name: str
    seconds: float
    share: float
    """Of the predicted step."""
    samples_per_s: float
    """What would be reached if nothing came after it."""


def waterfall(
    step: Step, job: Job, system: System, nodes: int, *, steps: int = 200, seed: int = 0, slow: Slow | None = None
) -> list[Bar]:
    """`step` as `simulate` found it, with the same steps, seed and slow ranks."""
    steady = replace(job, compute=replace(job.compute, transient=0.0))
    has_lasting = bool(job.compute.persistent or slow)
    waited = step.parts["stragglers"]
    lasting = 0.0
    if has_lasting:
        found = simulate(steady, system, nodes, steps=steps, seed=seed, slow=slow).step
        lasting = min(found.parts["stragglers"], waited)
    parts = [("compute alone", step.parts["compute"]), ("slow ranks, for good", lasting),
             ("slow ranks, step by step", waited - lasting)]  # fmt: skip
    parts += [(name, value) for name, value in step.parts.items() if name not in ("compute", "stragglers")]
    bars, until = [], 0.0
    for name, value in parts:
        until += value
        bars.append(Bar(name=name, seconds=value, share=value / step.seconds, samples_per_s=step.samples / until))
    return bars


def rounded(values: Sequence[float], digits: int) -> list[float]:
    """To so many digits, such that they add up to their rounded sum: those cut off most are rounded up."""
    unit = 10.0**-digits
    downs = [int(value / unit + 1e-9) for value in values]
    missing = round(sum(values) / unit) - sum(downs)
    order = sorted(range(len(values)), key=lambda place: values[place] / unit - downs[place], reverse=True)
    for place in order[: max(0, missing)]:
        downs[place] += 1
    return [round(down * unit, digits) for down in downs]
