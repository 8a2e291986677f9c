"""A job and a system, described from one recorded run and, where there is one, the doctor's measurements.

Every number that the run shows comes with its 80 % range: steps are drawn again and again, and the middle of what comes
out is the range. What a run cannot show (how fast input could be when nobody waited for it) is left out and said. Links
are those of `topout doctor`, as fast as the run's own transfers were; without it, the all-reduce that the run made.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from topout.analyze.measure import measure_run
from topout.analyze.steps import Phases, read_phases
from topout.host.file_systems import is_network
from topout.schema.errors import TopoutError
from topout.schema.measures import PHASES, Measures
from topout.schema.run_folder import RunFolder
from topout.study.anchor import anchored, find_anchor
from topout.study.bootstrap import Floats, mean, ranged, ranged_rate
from topout.study.seen_cores import seen_cores
from topout.study.seen_groups import seen_groups
from topout.study.seen_machine import data_place, seen_device, seen_machine
from topout.study.seen_memory import seen_memory
from topout.study.seen_pauses import seen_checkpoint, seen_evaluation
from topout.study.stragglers import split_spread

CALIBRATION_VERSION = 1
FEWEST_STEPS = 10
WORTH_SAYING = 1.2
"""So far from the doctor's links a job's may be without a word."""
WORK = ("copy", "forward", "backward", "optimizer", "other")


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
    job: dict[str, Any] = {
        "title": folder.path.name,
        "source": "topout calibrate",
        "device": seen_device(measures),
        "calibrated_nodes": measures.environment.num_hosts,
        "compute": _compute(phases, random),
        "gradients": _gradients(measures, phases, notes),
        "input": _input(measures, phases, doctor, random, notes),
        "evaluation": seen_evaluation(measures, phases, random),
        "checkpoint": seen_checkpoint(measures, phases, random),
        "memory": seen_memory(measures),
    }
    system = seen_machine(measures, doctor, notes)
    if doctor is not None and doctor.get("links"):
        system |= _anchored_links(phases, job, system, notes)
    job["compute"] |= seen_cores(phases, job, system)
    return Calibration(job, system, notes)


def _anchored_links(
    phases: Phases, job: dict[str, Any], system: dict[str, Any], notes: list[str]
) -> dict[str, dict[str, Any]]:
    """Those that the run used."""
    anchor = find_anchor(phases, job, system)
    if not 1 / WORTH_SAYING < anchor.links < WORTH_SAYING:
        notes.append(
            f"The job's transfers took {anchor.links:.2g} times as long as by the doctor's links, which are set so."
        )
    is_used = {"inside": system["ranks_per_node"] > 1, "between": job["calibrated_nodes"] > 1}
    return {name: anchored(system[name], anchor) for name in is_used if is_used[name]}


def seconds(phases: Phases, names: tuple[str, ...]) -> Floats:
    """By (rank, step)."""
    indices = [PHASES.index(name) for name in names]
    return np.asarray(phases.phase_ns[:, :, indices].sum(axis=2) / 1e9, dtype=np.float64)


def _compute(phases: Phases, random: np.random.Generator) -> dict[str, Any]:
    work = seconds(phases, WORK)
    # the first step is cut by the window and the last reaches to its end
    inner = slice(1, -1)
    return {
        "forward_s": ranged(seconds(phases, ("copy", "forward", "other"))[:, inner], mean, random),
        "backward_s": ranged(seconds(phases, ("backward",))[:, inner], mean, random),
        "optimizer_s": ranged(seconds(phases, ("optimizer",))[:, inner], mean, random),
        "persistent": ranged(work[:, inner], lambda values: split_spread(values)[0], random),
        "transient": ranged(work[:, inner], lambda values: split_spread(values)[1], random),
    }


def _gradients(measures: Measures, phases: Phases, notes: list[str]) -> dict[str, Any]:
    sizes = [table.facts.get("gradient_bytes") for table in phases.tables]
    known = measures.memory.gradient_bytes or next((size for size in sizes if size), None)
    found = measures.communication.bytes_per_step or known or 0
    if not found:
        notes.append("The size of the gradients was not seen; set job.gradients.bytes.")
    # how many tensors there are matters to a negotiation only, which torch does not have
    gradients = {"bytes": float(found), "tensors": 1}
    if groups := seen_groups(phases.tables):
        return gradients | {"groups": len(groups.ready), "ready": list(groups.ready), "shares": list(groups.shares)}
    count = measures.communication.num_collectives_per_step
    return gradients | {"groups": max(1, round(count)) if count else 8}


def _input(
    measures: Measures,
    phases: Phases,
    doctor: Mapping[str, Any] | None,
    random: np.random.Generator,
    notes: list[str],
) -> dict[str, Any]:
    batch = measures.input.batch_size
    if batch is None:
        notes.append("The batch of a rank was not seen; samples a second are batches a second.")
    waited = seconds(phases, ("input",))
    step = float(phases.duration_ns.mean() / 1e9)
    found: dict[str, Any] = {"samples": batch or 1} | _read(measures, step, batch or 1, data_place(doctor or {}))
    if waited.mean() > 0.02 * step:
        # ranks waited for it, so it was as fast as it can be
        steps_s = np.asarray(phases.duration_ns / 1e9, dtype=np.float64)[:, 1:-1]
        rate = ranged_rate(steps_s, float(batch or 1), random)
        found |= {"source": "local"} | found | {"loader_samples_per_s": rate}
    elif "source" not in found:
        notes.append("Nobody waited for input, so how fast it can be is not known; it is taken for no limit.")
    return found


def _read(measures: Measures, step_s: float, batch: int, place: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a sample asks of storage; empty when the recorder saw no reading, or nobody measured the storage."""
    rate, opens = measures.input.read_bytes_per_s, measures.input.opens_per_s
    if not rate or place is None:
        return {}
    samples_per_s = batch * measures.environment.num_ranks / step_s
    return {
        "source": "shared" if is_network(place.get("file_system")) else "local",
        "sample_bytes": rate / samples_per_s,
        "opens_per_sample": (opens or 0.0) / samples_per_s,
    }
