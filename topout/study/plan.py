"""How many nodes to ask for: seconds of a step times the steps that a batch needs, for every number of nodes.

Node-hours rise as soon as the batch nears the critical one, and time stops falling (`work`). Without a critical batch
the number of epochs is taken for fixed, which is true of small batches alone; the plan says so. Not a promise of
accuracy: at another batch the rate and the warm-up must be tuned again (docs/large-batch.md).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, log
from statistics import NormalDist

import numpy as np

from topout.schema.counted import counted
from topout.schema.errors import TopoutError
from topout.study.curve import beyond_numbers, check_nodes, own_error
from topout.study.description import NORMAL_TENTH, Ranged
from topout.study.devices import Prices, amount_of
from topout.study.job import Job
from topout.study.mesh_proposal import Proposal
from topout.study.step_model import expected_step
from topout.study.system import System
from topout.study.work import Work

DRAWS = 200
RETUNE = 2
"""A batch so many times the run's has another best rate and warm-up."""

_MOST_HOURS = 1e15
"""A hundred thousand million years."""


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
    """Of node-hours, against the fewest nodes."""
    steps: int = 0
    samples: float = 0.0
    """Until the end, at this batch."""
    cost: float | None = None
    """In the currency of the prices."""
    chance: float | None = None
    """Of ending within the time that was asked for."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    choices: list[Choice]
    fastest: Choice
    cheapest: Choice
    best_value: Choice
    notes: list[str]
    within: Choice | None = None
    """Fewest node-hours of those that end in time; None where no time was asked for, or none does."""
    currency: str = ""
    price_date: str = ""
    mesh: Proposal | None = None

    @property
    def recommended(self) -> Choice:
        return self.within or self.best_value


@dataclass(frozen=True, kw_only=True)
class Deadline:
    hours: float
    certainty: float = 0.9


def plan(
    job: Ranged[Job],
    system: Ranged[System],
    work: Work,
    nodes: Sequence[int],
    *,
    seed: int = 0,
    deadline: Deadline | None = None,
    prices: Prices | None = None,
    run_batch: int | None = None,
    meshes: Mapping[int, Proposal] | None = None,
) -> Plan:
    """`run_batch`: samples of a step of the run that the job comes from, over all ranks.

    `meshes`: by nodes, where replicas do not fit; what they take is then planned with.
    """
    nodes = sorted(set(nodes))
    check_nodes(nodes, system.value)
    if not 0 < work.samples < inf:
        raise TopoutError(
            "There is nothing to train.",
            why=f"{work.samples:g} samples are no amount.",
            do="--epochs and --samples above 0",
        )
    price = _price(system.value, prices)
    try:
        # what overflows is refused below
        with np.errstate(all="ignore"):
            choices = (
                [_of_mesh(one, work, price, deadline) for _, one in sorted(meshes.items())]
                if meshes
                else _of_replicas(job, system, work, nodes, seed=seed, price=price, deadline=deadline)
            )
    except ArithmeticError as error:
        raise beyond_numbers() from error
    # that a range is as good as open says its upper end
    if not all(0 < choice.hours < _MOST_HOURS and choice.high_hours < inf for choice in choices):
        raise beyond_numbers()
    first = choices[0].node_hours
    choices = [replace(choice, efficiency=first / choice.node_hours) for choice in choices]
    in_time = [one for one in choices if deadline and one.chance is not None and one.chance >= deadline.certainty]
    found = Plan(
        choices=choices,
        fastest=min(choices, key=lambda choice: choice.hours),
        cheapest=min(choices, key=lambda choice: choice.node_hours),
        best_value=best_value(choices),
        notes=[],
        within=min(in_time, key=lambda choice: choice.node_hours, default=None),
        currency=prices.currency if prices else "",
        price_date=prices.date if prices else "",
    )
    if meshes:
        found = replace(found, mesh=meshes[found.recommended.nodes])
    found.notes.extend(
        [*_late(found, deadline), *_notes(choices, work), *_retuning(found.recommended, work, run_batch)]
    )
    return found


def _of_replicas(
    job: Ranged[Job], system: Ranged[System], work: Work, nodes: Sequence[int], *, seed: int, price: float | None,
    deadline: Deadline | None,
) -> list[Choice]:  # fmt: skip
    random = np.random.default_rng(seed)
    drawn = [(job.draw(random), system.draw(random), work.draw(random)) for _ in range(DRAWS)]
    choices = []
    for count in nodes:
        hours = _hours(job.value, system.value, work, count)
        others = np.array([_hours(one, other, needed, count) for one, other, needed in drawn])
        if job.ranges or system.ranges:
            own = own_error(expected_step(job.value, system.value, count)) / NORMAL_TENTH
            others *= 1 + own * random.standard_normal(DRAWS)
        low, high = (float(edge) for edge in np.quantile(others, [0.1, 0.9]))
        batch = _batch(job.value, system.value, count)
        critical = work.critical_batch and work.critical_batch[0]
        choices.append(
            Choice(
                nodes=count,
                batch=batch,
                hours=hours,
                low_hours=min(low, hours),
                high_hours=max(high, hours),
                node_hours=hours * count,
                efficiency=1.0,
                steps=work.steps_at(batch, critical),
                samples=work.samples_at(batch, critical),
                cost=None if price is None else price * hours * count,
                chance=None if deadline is None else float((others <= deadline.hours).mean()),
            )
        )
    return choices


def _of_mesh(found: Proposal, work: Work, price: float | None, deadline: Deadline | None) -> Choice:
    batch = found.mesh.batch
    critical = work.critical_batch and work.critical_batch[0]
    node_hours = found.hours * found.nodes
    return Choice(
        nodes=found.nodes,
        batch=batch,
        hours=found.hours,
        low_hours=found.low_hours,
        high_hours=found.high_hours,
        node_hours=node_hours,
        efficiency=1.0,
        steps=work.steps_at(batch, critical),
        samples=work.samples_at(batch, critical),
        cost=None if price is None else price * node_hours,
        chance=None if deadline is None else _chance(found, deadline.hours),
    )


def _chance(found: Proposal, within_hours: float) -> float:
    """Log-normal on both sides of the value, as its range is."""
    edge = found.high_hours if within_hours > found.hours else found.low_hours
    side = abs(log(edge / found.hours))
    if side == 0:
        return float(within_hours >= found.hours)
    return NormalDist().cdf(log(within_hours / found.hours) / side * NORMAL_TENTH)


def best_value(choices: Sequence[Choice]) -> Choice:
    """Least time times node-hours: the point from which on doubling the nodes brings less than it costs.

    Not where the batch is larger than all there is to train, as long as another has a smaller one.
    """
    filled = [choice for choice in choices if choice.batch <= choice.samples]
    return min(filled or choices, key=lambda choice: choice.hours * choice.node_hours)


def _batch(job: Job, system: System, nodes: int) -> int:
    return job.input.samples * system.ranks_per_node * nodes


def _hours(job: Job, system: System, work: Work, nodes: int) -> float:
    step = expected_step(job, system, nodes)
    critical = work.critical_batch and work.critical_batch[0]
    return work.steps_at(step.samples, critical) * step.seconds / 3600


def _price(system: System, prices: Prices | None) -> float | None:
    """Of a node for an hour."""
    if prices is None:
        return None
    price = amount_of(prices.per_hour, system.device)
    if price is None:
        raise TopoutError(
            f"The prices do not name {system.device!r}.",
            why=f"They are of {', '.join(prices.per_hour) or 'nothing'}, and {system.title} has {system.device!r}.",
            do=f'[device."{system.device}"] with per_hour = 3.2',
        )
    return price * system.ranks_per_node


def _late(found: Plan, deadline: Deadline | None) -> list[str]:
    if deadline is None or found.within is not None:
        return []
    likeliest = max(found.choices, key=lambda choice: choice.chance or 0.0)
    return [
        f"No number of nodes ends within {deadline.hours:,.3g} h with {deadline.certainty:.0%} certainty; "
        f"{likeliest.nodes:,} nodes do with {likeliest.chance or 0:.0%}, and {found.fastest.nodes:,} take "
        f"{found.fastest.hours:,.3g} h."
    ]


def _notes(choices: Sequence[Choice], work: Work) -> list[str]:
    return [*_unfilled(choices), *_beyond_critical(choices, work)]


def _unfilled(choices: Sequence[Choice]) -> list[str]:
    larger = [choice for choice in choices if choice.batch > choice.samples]
    if not larger:
        return []
    return [
        f"From {larger[0].nodes:,} nodes on the batch ({larger[0].batch:,}) is larger than all there is to train "
        f"({larger[0].samples:,.0f} samples): one step, of which a part is wanted."
    ]


def _beyond_critical(choices: Sequence[Choice], work: Work) -> list[str]:
    if work.critical_batch is None:
        return [
            "The critical batch is not known, so the number of epochs is taken for fixed: true of small batches alone. "
            "topout.probe_batch measures it; give it as --critical-batch."
        ]
    critical = work.critical_batch[0]
    beyond = [choice for choice in choices if choice.batch > critical]
    if not beyond:
        return []
    return [
        f"From {beyond[0].nodes:,} nodes on the batch ({beyond[0].batch:,}) exceeds the critical one "
        f"({critical:,.0f}): each further node buys less. A smaller batch a rank, or a mesh (docs/hybrid.md: "
        "tp, pp, fsdp), uses more nodes without a larger batch."
    ]


def _retuning(choice: Choice, work: Work, run_batch: int | None) -> list[str]:
    """When the recipe of the run no longer holds at the size recommended."""
    critical = work.critical_batch and work.critical_batch[0]
    is_beyond = critical is not None and choice.batch > critical
    if run_batch is None:
        if choice.nodes == 1 and not is_beyond:
            return []
        why = "which batch the recipe was tuned for is not known here"
    elif choice.batch > RETUNE * run_batch:
        why = f"that is {choice.batch / run_batch:,.1f} times the {run_batch:,} of the run"
    elif is_beyond:
        why = f"that is beyond the critical one ({critical:,.0f})"
    else:
        return []
    return [
        f"At {counted(choice.nodes, 'node')} the batch is {choice.batch:,}; {why}. Learning rate and "
        "warm-up must be scaled and tuned again at that size (docs/large-batch.md); the hours hold if they are."
    ]
