"""How many cores a rank kept busy while it computed, as a recording shows it: what it will take from its neighbours.

Time on processors, of all threads and of loader workers, less what carrying the gradients cost. Not the cores it was
given: a rank that waits for its GPU uses a part of one.
"""

from collections.abc import Mapping
from typing import Any

from topout.analyze.counters import total_per_s
from topout.analyze.steps import Phases
from topout.study.collectives import inside_cpu_s
from topout.study.description import describe
from topout.study.job import Gradients
from topout.study.step_model import group_bytes
from topout.study.system import System

COUNTERS = ("cpu_ns", "worker_cpu_ns")


def seen_cores(phases: Phases, job: Mapping[str, Any], system: Mapping[str, Any]) -> float:
    """Zero where no counters were kept."""
    end_ns = phases.start_ns + phases.elapsed_ns
    rates = [total_per_s(phases.tables, name, phases.start_ns, end_ns) for name in COUNTERS]
    num_ranks, step_s = len(phases.tables), float(phases.duration_ns.mean() / 1e9)
    used_s = sum(rate or 0.0 for rate in rates) / 1e9 / num_ranks * step_s
    gradients = describe(Gradients, dict(job["gradients"]), "gradients").value
    machine = describe(System, dict(system), "system").value
    carrying_s = sum(inside_cpu_s(size, machine) for size in group_bytes(gradients)) if num_ranks > 1 else 0.0
    compute = job["compute"]
    alone_s = sum(compute[name]["value"] for name in ("forward_s", "backward_s", "optimizer_s"))
    return round(max(0.0, used_s - carrying_s) / alone_s, 4) if alone_s else 0.0
