"""How many nodes to ask for: seconds of a step times the steps that a batch needs, for every number of nodes.

Steps to a target fall with the batch only while it is small against the critical batch B (McCandlish et al., 2018):

    steps(b) = S (1 + B / b)        b the batch of all ranks, S steps of an unlimited batch

so node-hours rise as soon as b nears B, and time stops falling. Without a critical batch the number of epochs is taken
for fixed, which is true of small batches alone; the plan says so. Not a promise of accuracy: at another batch the rate
and the warm-up must be tuned again (docs/large-batch.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from topout.schema.errors import TopoutError
from topout.study.curve import check_nodes
from topout.study.description import NORMAL_TENTH, Ranged
from topout.study.job import Job
from topout.study.step_model import expected_step
from topout.study.system import System

DRAWS = 200


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is left to do, in samples of a small batch, and how it grows with the batch."""

    samples: float
    critical_batch: tuple[float, float, float] | None = None
    """Value, low and high of an 80 % range; None: not known."""

    def samples_at(self, batch: float, critical: float | None) -> float:
        """Samples until the target: S B of them for a tiny batch, more for a large one."""
        return self.samples if critical is None else self.samples * (1 + batch / critical)


@dataclass(frozen=True, kw_only=True)
class Choice:
    nodes: int
    batch: int
    """Of all ranks."""
    hours: float
    low_hours: float
    high_hours: float
    node_hours: float
    efficiency: float
    """Of node-hours, against one node."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    choices: list[Choice]
    fastest: Choice
    cheapest: Choice
    best_value: Choice
    notes: list[str]


def plan(job: Ranged[Job], system: Ranged[System], work: Work, nodes: Sequence[int], *, seed: int = 0) -> Plan:
    check_nodes(nodes, system.value)
    if work.samples <= 0:
        raise TopoutError("There is nothing to train.", why="No samples are left.", do="--epochs and --samples above 0")
    random = np.random.default_rng(seed)
    drawn = [(job.draw(random), system.draw(random), _draw_critical(work, random)) for _ in range(DRAWS)]
    middle = None if work.critical_batch is None else work.critical_batch[0]
    choices: list[Choice] = []
    for count in nodes:
        hours = _hours(job.value, system.value, work, count, middle)
        others = [_hours(one, other, work, count, critical) for one, other, critical in drawn]
        low, high = (float(edge) for edge in np.quantile(others, [0.1, 0.9]))
        first = choices[0].node_hours if choices else hours * count
        choices.append(
            Choice(
                nodes=count,
                batch=_batch(job.value, system.value, count),
                hours=hours,
                low_hours=min(low, hours),
                high_hours=max(high, hours),
                node_hours=hours * count,
                efficiency=first / (hours * count),
            )
        )
    return Plan(
        choices=choices,
        fastest=min(choices, key=lambda choice: choice.hours),
        cheapest=min(choices, key=lambda choice: choice.node_hours),
        best_value=best_value(choices),
        notes=_notes(choices, work),
    )


def best_value(choices: Sequence[Choice]) -> Choice:
    """Least time times node-hours: the point from which on doubling the nodes brings less than it costs."""
    return min(choices, key=lambda choice: choice.hours * choice.node_hours)


def _batch(job: Job, system: System, nodes: int) -> int:
    return job.input.samples * system.ranks_per_node * nodes


def _hours(job: Job, system: System, work: Work, nodes: int, critical: float | None) -> float:
    step = expected_step(job, system, nodes)
    return work.samples_at(step.samples, critical) / step.samples_per_s / 3600


def _draw_critical(work: Work, random: np.random.Generator) -> float | None:
    """Log-normal within its range: a batch cannot be negative, and ranges of it are wide."""
    if work.critical_batch is None:
        return None
    value, low, high = work.critical_batch
    deviation = random.standard_normal()
    side = np.log(high / value) if deviation > 0 else np.log(value / low)
    return float(value * np.exp(deviation * side / NORMAL_TENTH))


def _notes(choices: Sequence[Choice], work: Work) -> list[str]:
    notes = []
    smallest, largest = choices[0].batch, choices[-1].batch
    if work.critical_batch is None:
        notes.append(
            "The critical batch is not known, so the number of epochs is taken for fixed: true of small batches alone. "
            "topout.probe_batch measures it; give it as --critical-batch."
        )
    else:
        critical = work.critical_batch[0]
        beyond = [choice for choice in choices if choice.batch > critical]
        if beyond:
            notes.append(
                f"From {beyond[0].nodes:,} nodes on the batch ({beyond[0].batch:,}) exceeds the critical one "
                f"({critical:,.0f}): each further node buys less. A smaller batch a rank, or a mesh (docs/hybrid.md: "
                "tp, pp, fsdp), uses more nodes without a larger batch."
            )
    if largest > smallest:
        notes.append(
            f"The batch grows from {smallest:,} to {largest:,}. Learning rate and warm-up must be scaled and tuned "
            "again at the size chosen (docs/large-batch.md); the hours hold if they are."
        )
    return notes
