"""Links as the job itself used them: the doctor's, made as much slower or quicker as the run's own transfers say.

The doctor measures while nothing else runs, one message after another; a job sends while it computes, at its own sizes
and pauses. One factor on latency and bandwidth brings the model's exposed communication, at the ranks that were
recorded, to what was seen there: between the last rank's last arrival and the end. Not for a run whose communication
hides behind backward: it says nothing, and the doctor's word stands.

What messages cost processors lies between the doctor's figure (a slow transfer may only have waited) and as many times
it (memory that is slow for others, too, takes processors' time), and is not more than all that backward was seen to
take. The middle is taken.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import inf, sqrt
from typing import Any, NamedTuple

import numpy as np

from topout.analyze.steps import Phases
from topout.schema.measures import PHASES
from topout.study.description import describe
from topout.study.job import Job
from topout.study.seen_cores import backward_cpu_s, carrying_s
from topout.study.step_model import exposed_s
from topout.study.stragglers import expected_maximum
from topout.study.system import Link, System

LARGEST = 2.0
"""A link that differs by more is not the doctor's, or something else took the time."""
TELLING = 0.01
"""Of a step: what is exposed of it must be so much before it is believed."""
_HALVINGS = 40


class Anchor(NamedTuple):
    """How many times slower than the doctor's the job's links were, and as many times as much of processors' time."""

    links: float
    processors: float


def find_anchor(phases: Phases, job: Mapping[str, Any], system: Mapping[str, Any], on_device_s: float = 0.0) -> Anchor:
    """Links are the doctor's where the run does not say; `on_device_s` of a step is what kernels say it showed."""
    transfers_s = phases.phase_ns[:, 1:-1, PHASES.index("transfer")] / 1e9
    seen_s, step_s = on_device_s or float(transfers_s.mean()), float(phases.duration_ns.mean() / 1e9)
    described = describe(Job, dict(job), "job").value
    machine = describe(System, dict(system), "system").value
    on_processors_s, in_backward_s = carrying_s(job, system), backward_cpu_s(phases)

    def anchor(factor: float) -> Anchor:
        return Anchor(factor, cpu_factor(factor, on_processors_s, in_backward_s))

    def exceeds(factor: float) -> bool:
        return exposed_at_calibration_s(described, _slowed(machine, anchor(factor))) > seen_s

    if len(phases.tables) < 2 or seen_s < TELLING * step_s:
        return anchor(1.0)
    low, high = 1 / LARGEST, LARGEST
    if not exceeds(high):
        return anchor(high)
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if exceeds(middle) else (middle, high)
    return anchor(low)


def anchored(link: Mapping[str, Any], anchor: Anchor) -> dict[str, Any]:
    """The link's description, so many times slower."""
    cpu = {name: link[name] * anchor.processors for name in ("message_cpu_s", "byte_cpu_s") if name in link}
    rates = {name: rate / anchor.links for name, rate in link["bytes_per_s"].items()}
    return dict(link) | cpu | {"latency_s": link["latency_s"] * anchor.links, "bytes_per_s": rates}


def cpu_factor(factor: float, carrying_s: float, seen_s: float | None) -> float:
    """Of processors' time, where links are `factor` slower: the doctor's is `carrying_s`, all of backward `seen_s`."""
    most = seen_s / carrying_s if seen_s is not None and carrying_s else inf
    return float(min(sqrt(min(factor, most)), most))


def exposed_at_calibration_s(job: Job, system: System) -> float:
    """What sticks out of a step's communication by the model, on the nodes where the job was recorded."""
    compute, nodes = job.compute, max(1, job.calibrated_nodes)
    spread = float(np.hypot(compute.persistent, compute.transient))
    slowest = 1 + spread * expected_maximum(nodes * system.ranks_per_node)
    return exposed_s(job.gradients, compute.forward_s * slowest, compute.backward_s * slowest, nodes, system)[1]


def _slowed(system: System, anchor: Anchor) -> System:
    return replace(system, inside=_slower(system.inside, anchor), between=_slower(system.between, anchor))


def _slower(link: Link, anchor: Anchor) -> Link:
    return replace(
        link,
        latency_s=link.latency_s * anchor.links,
        bytes_per_s=link.bytes_per_s / anchor.links,
        message_cpu_s=link.message_cpu_s * anchor.processors,
        byte_cpu_s=link.byte_cpu_s * anchor.processors,
    )
