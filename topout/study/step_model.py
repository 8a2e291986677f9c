"""Seconds of a step and where they go, in closed form: the expected slowest rank, groups one after another.

    ready_i  = forward + backward r_i, of the slowest rank
    agreed_i = max(agreed_{i-1}, ready_i) + negotiation / groups
    there_i  = max(there_{i-1}, agreed_i) + all-reduce of group i

The step ends when the slowest rank has ended backward and the last group is there; or, where input is the bottleneck,
when the next batch is; or when the cores of a node have done what its ranks ask of them. `simulate` takes the same
steps one by one; the two agree to half a per cent where input does not vary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt

import numpy as np
from numpy.typing import NDArray

from topout.study.collectives import allreduce_s, carrying_cpu_s
from topout.study.job import Checkpoint, Evaluation, Gradients, Job
from topout.study.negotiation import negotiation_s
from topout.study.storage import samples_per_s
from topout.study.stragglers import expected_maximum
from topout.study.system import System

PARTS = (
    "compute",
    "stragglers",
    "negotiation",
    "communication",
    "cores",
    "input",
    "evaluation",
    "checkpoint",
    "failures",
)


@dataclass(frozen=True)
class Step:
    """Mean seconds of a step by part; they add up."""

    parts: dict[str, float]
    samples: int
    """Of all ranks."""

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.seconds


def expected_step(job: Job, system: System, nodes: int) -> Step:
    ranks = nodes * system.ranks_per_node
    compute = job.compute
    spread = float(np.hypot(compute.persistent, compute.transient))
    slowest = 1 + spread * expected_maximum(ranks)
    alone = compute.forward_s + compute.backward_s + compute.optimizer_s
    apart, in_backward = crowded_s(job, system)
    backward = compute.backward_s * slowest + in_backward
    agreeing, travelling = exposed_s(job.gradients, compute.forward_s * slowest, backward, nodes, system)
    crowded = apart + in_backward + crowding_s(job, system, nodes, backward + agreeing + travelling)
    busy = alone * slowest + agreeing + travelling + crowded
    batch_s = job.input.samples * system.ranks_per_node / samples_per_s(job.input, nodes, system)
    parts = {
        "compute": alone,
        "stragglers": alone * (slowest - 1),
        "negotiation": agreeing,
        "communication": travelling,
        "cores": crowded,
        "input": max(0.0, batch_s - busy),
    }
    samples = ranks * job.input.samples
    return Step(parts | around(job, sum(parts.values()), nodes, ranks, samples), samples)


def exposed_s(
    gradients: Gradients, forward_s: float, backward_s: float, nodes: int, system: System
) -> tuple[float, float]:
    """What negotiation and all-reduce add to the end of backward."""
    each_s = [allreduce_s(size, nodes, system) for size in group_bytes(gradients)]
    agreeing_s = negotiation_s(gradients, nodes, system) / gradients.groups
    there = last_group_s(forward_s + backward_s * ready(gradients), each_s, agreeing_s)
    without = last_group_s(forward_s + backward_s * ready(gradients), each_s, 0.0)
    end = forward_s + backward_s
    travelling = max(0.0, without - end)
    return max(0.0, there - end) - travelling, travelling


def crowded_s(job: Job, system: System) -> tuple[float, float]:
    """How much longer forward and optimizer take, and backward, where ranks need more cores than their node has.

    Of what a rank needs a processor for. In backward ranks take turns: the all-reduce before has brought them together,
    and they copy their gradients at the same moments. Elsewhere they seldom meet while cores are not full.
    """
    if not system.cores:
        return 0.0, 0.0
    compute = job.compute
    apart_s, in_backward = compute.forward_s + compute.optimizer_s, _cores_in_backward(job)
    waiting = min(_turns(compute.cores, system), _queue(compute.cores, system))
    return (
        apart_s * min(1.0, compute.cores) * waiting,
        compute.backward_s * min(1.0, in_backward) * _turns(in_backward, system),
    )


def crowding_s(job: Job, system: System, nodes: int, backward_s: float) -> float:
    """What is missing to a backward of so many seconds, exposed messages included, for cores to do all of its work.

    There computing and messages need them at the same time.
    """
    in_backward = _cores_in_backward(job)
    if not system.cores or not in_backward:
        return 0.0
    carrying_s = sum(carrying_cpu_s(size, nodes, system) for size in group_bytes(job.gradients))
    together_s = system.ranks_per_node * (job.compute.backward_s * in_backward + carrying_s) / system.cores
    return max(0.0, together_s - backward_s)


def _cores_in_backward(job: Job) -> float:
    return job.compute.backward_cores or job.compute.cores


def _turns(cores: float, system: System) -> float:
    """How many times as long a rank waits as it works, when all want their cores at once."""
    return max(0.0, system.ranks_per_node * max(1.0, cores) / system.cores - 1)


def _queue(cores: float, system: System) -> float:
    """The same when they come as they come: Sakasegawa's approximation for a queue with several servers."""
    full = system.ranks_per_node * cores / system.cores
    return full ** (sqrt(2 * (system.cores + 1)) - 1) / (system.cores * (1 - full)) if full < 1 else inf


def ready(gradients: Gradients) -> NDArray[np.float64]:
    """Share of backward after which each group is complete."""
    if not gradients.overlaps:
        return np.ones(gradients.groups)
    if len(gradients.ready) == gradients.groups:
        return np.asarray(gradients.ready, dtype=np.float64)
    if gradients.groups == 1:
        return np.ones(1)
    return np.linspace(gradients.first_ready, 1, gradients.groups)


def group_bytes(gradients: Gradients) -> list[float]:
    if len(gradients.shares) == gradients.groups:
        return [gradients.bytes * share for share in gradients.shares]
    return [gradients.bytes / gradients.groups] * gradients.groups


def last_group_s(ready_s: NDArray[np.float64], each_s: Sequence[float], agreeing_s: float) -> float:
    agreed = there = -inf
    for moment, travelling_s in zip(ready_s, each_s, strict=True):
        agreed = max(agreed, float(moment)) + agreeing_s
        there = max(there, agreed) + travelling_s
    return there


def steps_between(pause: Evaluation | Checkpoint, samples: int) -> float:
    """From one to the next, where a step of all ranks has so many samples; zero: it does not come.

    An epoch has fewer steps the larger they are, so what comes once an epoch comes more often in them.
    """
    return pause.every_samples / samples if pause.every_samples else float(pause.every_steps)


def around(job: Job, step_s: float, nodes: int, ranks: int, samples: int) -> dict[str, float]:
    """What evaluation, checkpoints and failures add to a mean step, which has so many samples of all ranks.

    A failure costs the restart and half of what lies between two checkpoints (Young's first order).
    """
    evaluation, checkpoint, failures = job.evaluation, job.checkpoint, job.failures
    to_evaluation, to_checkpoint = steps_between(evaluation, samples), steps_between(checkpoint, samples)
    evaluating = saving = failing = 0.0
    if to_evaluation and evaluation.samples_per_s:
        together = evaluation.samples_per_s * (ranks if evaluation.is_sharded else 1)
        evaluating = evaluation.samples / together / to_evaluation
    if to_checkpoint and checkpoint.is_blocking and checkpoint.bytes_per_s:
        saving = checkpoint.bytes / checkpoint.bytes_per_s / to_checkpoint
    if failures.node_hours:
        whole_s = step_s + evaluating + saving
        lost_s = failures.restart_s + whole_s * to_checkpoint / 2
        failing = whole_s * lost_s * nodes / (failures.node_hours * 3600)
    return {"evaluation": evaluating, "checkpoint": saving, "failures": failing}
