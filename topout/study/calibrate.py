"""A job and a system, described from one recorded run and, where there is one, the doctor's measurements.

Every number that the run shows comes with its 80 % range: steps are drawn again and again, and the middle of what comes
out is the range. What a run cannot show (how fast input could be when nobody waited for it) is left out and said. Links
are those of `topout doctor`; without it, the all-reduce that the run itself was seen to make.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topout.analyze.measure import measure_run
from topout.analyze.steps import Phases, read_phases
from topout.schema.errors import TopoutError
from topout.schema.measures import PHASES, Measures
from topout.schema.run_folder import RunFolder
from topout.study.stragglers import split_spread

CALIBRATION_VERSION = 1
DRAWS = 300
FEWEST_STEPS = 10
WORK = ("copy", "forward", "backward", "optimizer", "other")
_TYPICAL_LATENCY_S = 1e-4

Floats = NDArray[np.float64]


@dataclass
class Calibration:
    """What `simulate` reads, and what it does not know."""

    job: dict[str, Any]
    system: dict[str, Any]
    notes: list[str] = field(default_factory=list)


def calibrate(folder: RunFolder, doctor: Mapping[str, Any] | None = None, *, seed: int = 0) -> Calibration:
    measures, _ = measure_run(folder)
    phases = read_phases(folder)
    if phases is None or len(phases.steps) < FEWEST_STEPS:
        raise TopoutError(
            f"{folder.path} has too few steps to calibrate from.",
            why=f"{0 if phases is None else len(phases.steps)} steady steps were seen; {FEWEST_STEPS} are the fewest.",
            do="record a longer run: topout run train.py",
        )
    notes: list[str] = []
    random = np.random.default_rng(seed)
    job = {
        "title": folder.path.name,
        "source": "topout calibrate",
        "device": measures.environment.device_name or "",
        "calibrated_nodes": measures.environment.num_hosts,
        "compute": _compute(phases, random),
        "gradients": _gradients(measures, phases, notes),
        "input": _input(measures, phases, random, notes),
        "evaluation": _evaluation(measures, phases),
        "checkpoint": _checkpoint(measures, phases),
    }
    return Calibration(job, _system(measures, doctor, notes), notes)


def seconds(phases: Phases, names: tuple[str, ...]) -> Floats:
    """By (rank, step)."""
    indices = [PHASES.index(name) for name in names]
    return np.asarray(phases.phase_ns[:, :, indices].sum(axis=2) / 1e9, dtype=np.float64)


def ranged(values: Floats, of: Callable[[Floats], float], random: np.random.Generator) -> dict[str, float]:
    """A figure of an array by (rank, step), and its 80 % range when steps are drawn anew.

    The basic bootstrap: as far as drawn figures lie above the value, the true one may lie below it.
    """
    num_steps = values.shape[1]
    drawn = [of(values[:, random.integers(0, num_steps, num_steps)]) for _ in range(DRAWS)]
    value = of(values)
    high, low = (2 * value - float(edge) for edge in np.quantile(drawn, [0.1, 0.9]))
    return {"value": value, "low": max(0.0, min(low, value)), "high": max(high, value)}


def _mean(values: Floats) -> float:
    return float(values.mean())


def _compute(phases: Phases, random: np.random.Generator) -> dict[str, Any]:
    work = seconds(phases, WORK)
    # the first step is cut by the window and the last reaches to its end
    inner = slice(1, -1)
    return {
        "forward_s": ranged(seconds(phases, ("copy", "forward", "other"))[:, inner], _mean, random),
        "backward_s": ranged(seconds(phases, ("backward",))[:, inner], _mean, random),
        "optimizer_s": ranged(seconds(phases, ("optimizer",))[:, inner], _mean, random),
        "persistent": ranged(work[:, inner], lambda values: split_spread(values)[0], random),
        "transient": ranged(work[:, inner], lambda values: split_spread(values)[1], random),
    }


def _gradients(measures: Measures, phases: Phases, notes: list[str]) -> dict[str, Any]:
    sizes = [table.facts.get("gradient_bytes") for table in phases.tables]
    known = measures.memory.gradient_bytes or next((size for size in sizes if size), None)
    found = measures.communication.bytes_per_step or known or 0
    if not found:
        notes.append("The size of the gradients was not seen; set job.gradients.bytes.")
    groups = measures.communication.num_collectives_per_step
    # how many tensors there are matters to a negotiation only, which torch does not have
    return {"bytes": float(found), "tensors": 1, "groups": max(1, round(groups)) if groups else 8}


def _input(measures: Measures, phases: Phases, random: np.random.Generator, notes: list[str]) -> dict[str, Any]:
    batch = measures.input.batch_size
    if batch is None:
        notes.append("The batch of a rank was not seen; samples a second are batches a second.")
    waited = seconds(phases, ("input",))
    step = float(phases.duration_ns.mean() / 1e9)
    found: dict[str, Any] = {"samples": batch or 1, "source": "none"}
    if waited.mean() > 0.02 * step:
        # ranks waited for it, so it was as fast as it can be
        rate = ranged(np.asarray(phases.duration_ns / 1e9, dtype=np.float64)[:, 1:-1],
                      lambda values: (batch or 1) / float(values.mean()), random)  # fmt: skip
        found |= {"source": "local", "loader_samples_per_s": rate}
    else:
        notes.append("Nobody waited for input, so how fast it can be is not known; it is taken for no limit.")
    return found


def _evaluation(measures: Measures, phases: Phases) -> dict[str, Any]:
    share = measures.serial.evaluation_share
    if not share:
        return {}
    spent_s = share * phases.elapsed_ns / 1e9
    is_sharded = len(measures.serial.ranks) != 1
    num_ranks = len(phases.tables)
    samples = 1_000_000
    return {
        "samples": samples,
        "samples_per_s": samples / spent_s / (num_ranks if is_sharded else 1),
        "every_steps": len(phases.steps),
        "is_sharded": is_sharded,
    }


def _checkpoint(measures: Measures, phases: Phases) -> dict[str, Any]:
    share = measures.serial.checkpoint_share
    if not share:
        return {}
    memory = measures.memory
    size = float((memory.parameter_bytes or 0) + (memory.optimizer_bytes or 0)) or 1.0
    return {"bytes": size, "bytes_per_s": size / (share * phases.elapsed_ns / 1e9), "every_steps": len(phases.steps)}


def _system(measures: Measures, doctor: Mapping[str, Any] | None, notes: list[str]) -> dict[str, Any]:
    environment = measures.environment
    seen = _seen_link(measures, notes)
    links = {} if doctor is None else _doctors_links(doctor)
    inside = links.get("within a host") or seen
    between = links.get("between hosts") or (seen if environment.num_hosts > 1 else inside)
    if "between hosts" not in links and environment.num_hosts == 1:
        notes.append("No link between hosts was measured; that within a host stands for it. topout doctor, in an "
                     "allocation of two, measures one.")  # fmt: skip
    return {
        "title": "where it was recorded",
        "nodes": max(1024, environment.num_hosts),
        "ranks_per_node": max(1, environment.num_ranks // max(1, environment.num_hosts)),
        "device": environment.device_name or "",
        "inside": inside,
        "between": between,
    }


def _seen_link(measures: Measures, notes: list[str]) -> dict[str, Any]:
    rate = measures.communication.bytes_per_s
    if not rate:
        notes.append("No all-reduce was seen, and no link measured: bandwidth is taken for 1 GB/s. Set it, or give "
                     "--doctor.")  # fmt: skip
    value = rate or 1e9
    return {"latency_s": _TYPICAL_LATENCY_S, "bytes_per_s": {"value": value, "low": value / 2, "high": value * 2}}


def _doctors_links(doctor: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Of the all-reduces: what their line through two points says of a single link."""
    found: dict[str, dict[str, Any]] = {}
    for link in doctor.get("links", ()):
        if link.get("operation") != "all-reduce" or not link.get("beta_bytes_per_s"):
            continue
        num = max(2, int(link["num_ranks"]))
        moved, messages = 2 * (num - 1) / num, 2 * (num - 1)
        low, high = link.get("beta_interval_bytes_per_s") or (link["beta_bytes_per_s"],) * 2
        latency_s = max(link["alpha_s"] / messages, 1e-9)
        found[link["link_class"]] = {
            "latency_s": latency_s,
            "bytes_per_s": {
                "value": moved * link["beta_bytes_per_s"],
                "low": moved * min(low, link["beta_bytes_per_s"]),
                "high": moved * max(high, link["beta_bytes_per_s"]),
            },
        }
    return found
