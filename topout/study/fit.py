"""Few unknown numbers of a job or a system from measured throughput, by least squares of relative errors.

Not with as many points as unknowns or fewer: such a fit passes through every point and says nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from topout.schema.errors import TopoutError
from topout.study.description import get, put
from topout.study.job import Job
from topout.study.step_model import expected_step
from topout.study.system import System


@dataclass(frozen=True)
class Machine:
    """A job on a system; what a fit changes and a prediction asks."""

    job: Job
    system: System

    def samples_per_s(self, nodes: int) -> float:
        return expected_step(self.job, self.system, nodes).samples_per_s

    def efficiency(self, nodes: int) -> float:
        """Of so many nodes against one."""
        return self.samples_per_s(nodes) / nodes / self.samples_per_s(1)

    def of_one_node(self, samples_per_s: float) -> "Machine":
        """The same, computing as fast as makes one node reach this."""
        compute = self.job.compute
        factor = self.samples_per_s(1) / samples_per_s
        faster = replace(compute, forward_s=compute.forward_s * factor, backward_s=compute.backward_s * factor,
                         optimizer_s=compute.optimizer_s * factor)  # fmt: skip
        return replace(self, job=replace(self.job, compute=faster))


def fit(machine: Machine, points: Mapping[int, float], free: Sequence[str], *, is_worst: bool = False) -> Machine:
    """`points`: samples a second by nodes; `free`: names such as `job.compute.transient`.

    One node's rate fixes how fast it computes, so one of the points must be that of one node. `is_worst` makes the
    largest error small instead of the sum of squares.
    """
    if len(points) <= len(free):
        raise TopoutError(
            f"{len(points)} points cannot tell {len(free)} numbers apart.",
            why="A fit with as many numbers as points always passes through all of them.",
            do=f"measure at least {len(free) + 1} node counts, or fit fewer numbers",
        )
    if 1 not in points:
        raise TopoutError("No point of one node.", why="It says how fast a node computes.", do="measure one node")
    from scipy.optimize import least_squares

    paths = [tuple(name.split(".")) for name in free]
    start = np.array([get(machine, path) for path in paths])
    others = [nodes for nodes in points if nodes != 1]

    def changed(values: Sequence[float]) -> Machine:
        found: Any = machine
        for path, value in zip(paths, values, strict=True):
            found = put(found, path, float(value))
        with_rate: Machine = found.of_one_node(points[1])
        return with_rate

    def errors(scaled: np.ndarray) -> list[float]:
        found = changed(scaled * start)
        # a high power of errors is ruled by the largest
        power = 8 if is_worst else 1
        return [(20 * (found.samples_per_s(nodes) / points[nodes] - 1)) ** power for nodes in others]

    best = least_squares(errors, np.ones(len(paths)), bounds=(0, np.inf))
    return changed(best.x * start)
