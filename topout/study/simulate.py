"""A job, step by step, with every rank's own speed and every node's own loader; arrays over ranks, a loop over steps.

Synchronous training has one event that matters in a step: the moment all ranks have a group of gradients. So the whole
machine is a few arrays, and a step of 27,648 ranks costs as much as drawing their random numbers. Not for asynchronous
schedules. Seconds, never cycles.
"""

from dataclasses import dataclass
from math import isfinite

import numpy as np

from topout.study.collectives import allreduce_s
from topout.study.job import Job
from topout.study.negotiation import negotiation_s
from topout.study.step_model import Step, around, crowded_s, expected_step, group_bytes, last_group_s, ready
from topout.study.storage import samples_per_s
from topout.study.system import System

WARM_STEPS = 3
"""Beyond the depth of prefetching: what fills the pipeline is not counted."""


@dataclass(frozen=True)
class Simulated:
    step: Step
    """Mean over the steps."""
    late_s: float
    """The step that 95 of 100 do not exceed, without evaluation and the like."""


@dataclass(frozen=True)
class Slow:
    """Some ranks are slower for good: a throttled GPU, a bad fan."""

    ranks: int
    factor: float


def simulate(
    job: Job, system: System, nodes: int, *, steps: int = 200, seed: int = 0, slow: Slow | None = None
) -> Simulated:
    random = np.random.default_rng(seed)
    local = system.ranks_per_node
    speed = _speeds(job, nodes * local, random, slow)
    shares = ready(job.gradients)
    each_s = [allreduce_s(size, nodes, system) for size in group_bytes(job.gradients)]
    agreeing_s = negotiation_s(job.gradients, nodes, system) / job.gradients.groups
    loaders = _Loaders(job, system, nodes, random)
    compute = job.compute
    all_cores_s = expected_step(job, system, nodes).parts["cores"]
    _, in_backward_s = crowded_s(job, system)
    clock = 0.0
    rows = np.zeros((steps, 6))
    for number in range(steps):
        pace = speed * (1 + compute.transient * random.standard_normal(len(speed), dtype=np.float32))
        # of a node's ranks only the slowest matters: all begin together
        slowest = pace.reshape(nodes, local).max(axis=1)
        begin = np.maximum(loaders.next_batch(), clock)
        forward_end = begin + compute.forward_s * slowest
        backward = compute.backward_s * slowest + in_backward_s
        computed = float((forward_end + backward).max())
        moments = np.array([float((forward_end + backward * share).max()) for share in shares])
        travelled = max(computed, last_group_s(moments, each_s, 0.0))
        end = max(computed, last_group_s(moments, each_s, agreeing_s))
        last = compute.optimizer_s * float(slowest.max())
        loaders.taken(begin)
        waited = float(begin.max()) - clock
        mean = (compute.forward_s + compute.backward_s + compute.optimizer_s) * float(pace.mean())
        late = computed - clock - waited + last - mean - in_backward_s
        rows[number] = mean, late, end - travelled, travelled - computed, all_cores_s, waited
        clock = end + last + all_cores_s - in_backward_s
    kept = rows[min(steps - 1, job.input.prefetch + WARM_STEPS) :]
    parts = dict(zip(("compute", "stragglers", "negotiation", "communication", "cores", "input"),
                     map(float, kept.mean(axis=0)), strict=True))  # fmt: skip
    ranks = nodes * local
    samples = ranks * job.input.samples
    step = Step(parts | around(job, sum(parts.values()), nodes, ranks, samples), samples)
    return Simulated(step, float(np.quantile(kept.sum(axis=1), 0.95)))


def _speeds(job: Job, ranks: int, random: np.random.Generator, slow: Slow | None) -> np.ndarray:
    speeds = np.ones(ranks, dtype=np.float32)
    if job.compute.persistent:
        speeds += job.compute.persistent * random.standard_normal(ranks, dtype=np.float32)
    if slow is not None:
        speeds[random.choice(ranks, min(slow.ranks, ranks), replace=False)] *= slow.factor
    return speeds


class _Loaders:
    """One a node, with a ring of batches: the next is begun when a place is free and the one before is done.

    A place is free as soon as its batch is taken, as in a DataLoader: even one place has input overlap with the step.
    """

    def __init__(self, job: Job, system: System, nodes: int, random: np.random.Generator) -> None:
        rate = samples_per_s(job.input, nodes, system)
        self._batch_s = job.input.samples * system.ranks_per_node / rate if isfinite(rate) else 0.0
        self._spread = job.input.spread
        self._random = random
        self._done = np.zeros(nodes)
        self._freed_s = [self._done] * job.input.prefetch
        self._number = 0

    def next_batch(self) -> np.ndarray:
        """When each node has it."""
        if self._batch_s == 0:
            return self._done
        taken = np.full(len(self._done), self._batch_s)
        if self._spread:
            taken *= np.maximum(0.1, 1 + self._spread * self._random.standard_normal(len(self._done)))
        self._done = np.maximum(self._done, self._freed_s[self._number % len(self._freed_s)]) + taken
        return self._done

    def taken(self, moments: np.ndarray) -> None:
        """When each node took it."""
        self._freed_s[self._number % len(self._freed_s)] = moments
        self._number += 1
