"""How many cores a rank kept busy while it computed, as a recording shows it: what it will take from its neighbours.

Time on processors, of all threads and of loader workers, less what carrying the gradients cost. In backward for itself,
where each call's time was recorded: that is where copies of gradients are made. Not the cores it was given: a rank that
waits for its GPU uses a part of one.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from topout.analyze.counters import total_per_s
from topout.analyze.steps import Phases
from topout.schema.event import NOT_GIVEN, Kind
from topout.study.collectives import carrying_cpu_s
from topout.study.description import describe
from topout.study.job import Gradients
from topout.study.step_model import group_bytes
from topout.study.system import System


def seen_cores(phases: Phases, job: Mapping[str, Any], system: Mapping[str, Any]) -> dict[str, float]:
    """Of `Compute`: `cores` and `backward_cores`; zero where it was not counted."""
    step_s = float(phases.duration_ns.mean() / 1e9)
    rank_s, workers_s = (_per_step_s(phases, name, step_s) for name in ("cpu_ns", "worker_cpu_ns"))
    messages_s = carrying_s(job, system) if len(phases.tables) > 1 else 0.0
    seconds = {name: job["compute"][name]["value"] for name in ("forward_s", "backward_s", "optimizer_s")}
    alone_s = sum(seconds.values())
    backward_s = backward_cpu_s(phases)
    if backward_s is None or not seconds["backward_s"]:
        return {"cores": round(max(0.0, rank_s + workers_s - messages_s) / alone_s, 4) if alone_s else 0.0}
    all_along = workers_s / step_s
    apart_s = alone_s - seconds["backward_s"]
    return {
        "cores": round(all_along + (max(0.0, rank_s - backward_s) / apart_s if apart_s else 0.0), 4),
        "backward_cores": round(all_along + max(0.0, backward_s - messages_s) / seconds["backward_s"], 4),
    }


def _per_step_s(phases: Phases, counter: str, step_s: float) -> float:
    """Of one rank, in the mean."""
    rate = total_per_s(phases.tables, counter, phases.start_ns, phases.start_ns + phases.elapsed_ns)
    return (rate or 0.0) / 1e9 / len(phases.tables) * step_s


def carrying_s(job: Mapping[str, Any], system: Mapping[str, Any]) -> float:
    """What a step's messages take of one rank's processors, by the machine's description."""
    gradients = describe(Gradients, dict(job["gradients"]), "gradients").value
    machine = describe(System, dict(system), "system").value
    return sum(carrying_cpu_s(size, job["calibrated_nodes"], machine) for size in group_bytes(gradients))


def backward_cpu_s(phases: Phases) -> float | None:
    """Seconds of processors in a step's backward, in the mean of ranks; None where a call does not say."""
    found = []
    for table, edges in zip(phases.tables, phases.edges_ns, strict=True):
        rows = table.rows(Kind.BACKWARD)
        rows = rows[(table.start_ns[rows] >= edges[0]) & (table.start_ns[rows] < edges[-1])]
        used_ns = table.value[rows]
        if not len(rows) or np.any(used_ns == NOT_GIVEN):
            return None
        found.append(float(used_ns.sum()) / 1e9 / len(phases.steps))
    return sum(found) / len(found)
