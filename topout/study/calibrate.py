"""A job and a system, described from one recorded run and, where there is one, the doctor's measurements.

Every number that the run shows comes with its 80 % range: steps are drawn again and again, and the middle of what comes
out is the range. What a run cannot show (how fast input could be when nobody waited for it) is left out and said. Links
are those of `topout doctor`, as fast as the run's own transfers were; without it, as fast as these alone say.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from topout.analyze.accelerator import runs_ahead
from topout.analyze.collectives import hides_waits
from topout.analyze.measure import measure_run
from topout.analyze.steps import Phases, read_phases
from topout.analyze.unheard import are_alone, blind_phases, hides_communication, without_arrivals
from topout.host.file_systems import is_network
from topout.schema.errors import TopoutError
from topout.schema.measures import PHASES, SERIAL_PHASES, Measures
from topout.schema.run_folder import RunFolder, open_run
from topout.study.anchor import anchored, exposed_at_calibration_s, find_anchor
from topout.study.bootstrap import Floats, mean, ranged, ranged_rate
from topout.study.description import describe
from topout.study.job import Gradients, Job
from topout.study.seen_cores import seen_cores
from topout.study.seen_groups import first_ready, seen_groups
from topout.study.seen_link import seen_link
from topout.study.seen_machine import data_place, seen_device, seen_machine
from topout.study.seen_memory import seen_memory
from topout.study.seen_pauses import kept_shares, said_of_shares, seen_checkpoint, seen_evaluation
from topout.study.seen_samples import num_peers, seen_samples
from topout.study.stragglers import split_spread
from topout.study.system import System
from topout.trace.table import RankTable

CALIBRATION_VERSION = 1
FEWEST_STEPS = 10
WORTH_SAYING = 1.2
"""So far from the doctor's links a job's may be without a word."""
_WITHIN_MESH = ("tensor", "bubble")
"""Waiting for peers of a mesh, of which more nodes have more: it stays as it is."""
WORK = ("copy", "forward", "backward", "optimizer", "other", *_WITHIN_MESH)
_FORWARD = ("copy", "forward", "other", *_WITHIN_MESH)
_INNER = slice(1, -1)
"""The first step is cut by the window, and the last reaches to its end."""
_LEAST_SEEN = 0.1
"""Of the gradients' bytes: messages that come to less are a loss, metrics or statistics of layers."""
_MOST_HIDDEN = 0.95
"""Of a phase: something of it was computing."""
_USUAL_FORWARD = 1 / 3
"""Of forward and backward: each product of forward has two in backward."""


@dataclass
class Calibration:
    """What `simulate` reads, and what it does not know."""

    job: dict[str, Any]
    system: dict[str, Any]
    notes: list[str] = field(default_factory=list)


def calibrate(folder: RunFolder, doctor: Mapping[str, Any] | None = None, *, seed: int = 0) -> Calibration:
    measures, _ = measure_run(folder)
    phases = _read_steps(folder)
    notes: list[str] = []
    random = np.random.default_rng(seed)
    run = open_run(folder.path)[1]
    exposed = _exposed(measures, phases, run, notes)
    job: dict[str, Any] = {
        "title": folder.path.name,
        "source": "topout calibrate",
        "device": seen_device(measures),
        "calibrated_nodes": measures.environment.num_hosts,
        "compute": _compute(phases, random, exposed.in_backward_s, notes, loads_itself=measures.input.num_workers == 0),
        "gradients": _gradients(measures, phases, notes),
        "input": _input(measures, phases, doctor, random, notes),
    }
    samples = job["input"]["samples"] * measures.environment.num_ranks
    kept = kept_shares(run, phases, notes)
    job |= {
        "evaluation": seen_evaluation(phases, random, samples, kept, notes),
        "checkpoint": seen_checkpoint(measures, phases, random, samples, kept),
        "memory": seen_memory(measures, notes, num_peers(phases.tables)),
    }
    notes += said_of_shares(kept, job["evaluation"], job["checkpoint"])
    system = seen_machine(measures, doctor, notes)
    if unknown := [name for name in ("inside", "between") if name not in system]:
        link = seen_link(job, system, unknown, notes, exposed_s=exposed.seen_s, step_s=mean(_training_s(phases)))
        system |= dict.fromkeys(unknown, link)
    if doctor is not None and doctor.get("links"):
        system |= _anchored_links(phases, job, system, notes, exposed.in_backward_s)
        job["compute"] |= _given_back(job, system, exposed.in_backward_s)
    job["compute"] |= seen_cores(phases, job, system)
    return Calibration(job, system, notes)


def _read_steps(folder: RunFolder) -> Phases:
    """Steps of a run that trains, and enough of them."""
    phases = read_phases(folder)
    if phases is None or len(phases.steps) < FEWEST_STEPS:
        raise TopoutError(
            f"{folder.path} has too few steps to calibrate from.",
            why=f"{0 if phases is None else len(phases.steps)} steady steps were seen; {FEWEST_STEPS} are the fewest.",
            do="record a longer run: topout run train.py",
        )
    if not seconds(phases, WORK)[:, _INNER].any():
        raise TopoutError(
            f"{folder.path} shows no computing to calibrate from.",
            why="All time of its steps is input, evaluation, saving or communication.",
            do=f"topout analyze {shlex.quote(str(folder.path))}   says where it went; record a run that trains",
        )
    return phases


def _anchored_links(
    phases: Phases, job: dict[str, Any], system: dict[str, Any], notes: list[str], on_device_s: float
) -> dict[str, dict[str, Any]]:
    """Those that the run used."""
    anchor = find_anchor(phases, job, system, on_device_s)
    if not 1 / WORTH_SAYING < anchor.links < WORTH_SAYING:
        notes.append(
            f"The job's transfers took {anchor.links:.2g} times as long as by the doctor's links, which are set so."
        )
    is_used = {"inside": system["ranks_per_node"] > 1, "between": job["calibrated_nodes"] > 1}
    return {name: anchored(system[name], anchor) for name in is_used if is_used[name]}


def _given_back(job: dict[str, Any], system: dict[str, Any], taken_s: float) -> dict[str, Any]:
    """To backward, what was taken off it as communication and no link that is believed shows."""
    described = describe(Job, dict(job), "job").value
    shown_s = exposed_at_calibration_s(described, describe(System, dict(system), "system").value) if taken_s else 0.0
    backward = job["compute"]["backward_s"]
    return {"backward_s": {name: value + max(0.0, taken_s - shown_s) for name, value in backward.items()}}


def seconds(phases: Phases, names: tuple[str, ...]) -> Floats:
    """By (rank, step)."""
    indices = [PHASES.index(name) for name in names]
    return np.asarray(phases.phase_ns[:, :, indices].sum(axis=2) / 1e9, dtype=np.float64)


def _training_s(phases: Phases) -> Floats:
    """By (rank, inner step), without evaluations and saves, which cost a step what they cost the slowest rank."""
    whole = phases.duration_ns[:, _INNER] / 1e9
    serial = sum(seconds(phases, (name,)).max(axis=0)[_INNER] for name in SERIAL_PHASES)
    return np.asarray(np.maximum(whole - serial, seconds(phases, ("input", *WORK))[:, _INNER]), dtype=np.float64)


class _Exposed(NamedTuple):
    """Communication of a step that nothing hid."""

    seen_s: float | None
    """None: not heard, or not told from computing."""
    in_backward_s: float = 0.0
    """What of it stands under backward."""


def _exposed(measures: Measures, phases: Phases, run: Mapping[str, Any], notes: list[str]) -> _Exposed:
    tables = phases.tables
    if hides_communication(tables, run) and measures.device is not None:
        on_device_s = measures.device.exposed_communication_share * mean(_training_s(phases))
        return _Exposed(seen_s=on_device_s, in_backward_s=on_device_s)
    if hides_communication(tables, run) or ("backward" in blind_phases(tables, run) and not are_alone(tables)):
        is_on_device = any(map(runs_ahead, tables))
        notes.append(
            "Backward holds communication that nothing hid, and waiting for it, which the model adds once more: steps "
            "are predicted too long. "
            + (
                "Record with --profile, or calibrate a run of one device."
                if is_on_device
                else "Calibrate a run of one rank."
            )
        )
        return _Exposed(seen_s=None)
    if len(tables) < 2 or not measures.communication.bytes_per_step or hides_waits(tables):
        return _Exposed(seen_s=None)
    return _Exposed(seen_s=mean(seconds(phases, ("transfer",))[:, _INNER]))


def _compute(
    phases: Phases, random: np.random.Generator, hidden_s: float, notes: list[str], *, loads_itself: bool
) -> dict[str, Any]:
    """Without `hidden_s` of backward; with the batches that a rank makes itself, which is work as any other."""
    loading_s = seconds(phases, ("input",))[:, _INNER] * loads_itself
    work = seconds(phases, WORK)[:, _INNER] + loading_s
    forward_s, backward_s = (seconds(phases, names)[:, _INNER] for names in (_FORWARD, ("backward",)))
    if not (forward_s.any() and backward_s.any()):
        notes.append("Forward was not told from backward; a third of the two is taken for forward, as usual.")
        both_s = forward_s + backward_s
        forward_s, backward_s = _USUAL_FORWARD * both_s, (1 - _USUAL_FORWARD) * both_s
    backward = ranged(backward_s, mean, random)
    forward = ranged(forward_s + loading_s, mean, random)
    from_backward_s = min(hidden_s, _MOST_HIDDEN * backward["value"])
    return {
        # sharded models communicate in forward, too
        "forward_s": _shortened(forward, hidden_s - from_backward_s),
        "backward_s": _shortened(backward, from_backward_s),
        "optimizer_s": ranged(seconds(phases, ("optimizer",))[:, _INNER], mean, random),
        "persistent": ranged(work, lambda values: split_spread(values)[0], random),
        "transient": ranged(work, lambda values: split_spread(values)[1], random),
    }


def _shortened(length: dict[str, float], by_s: float) -> dict[str, float]:
    if not by_s:
        return length
    kept = max(1 - _MOST_HIDDEN, 1 - by_s / length["value"]) if length["value"] else 1.0
    return {name: value * kept for name, value in length.items()}


def _gradients(measures: Measures, phases: Phases, notes: list[str]) -> dict[str, Any]:
    sizes = [table.facts.get("gradient_bytes") for table in phases.tables]
    known = measures.memory.gradient_bytes or next((size for size in sizes if size), None)
    seen = measures.communication.bytes_per_step or 0
    is_unseen = seen < _LEAST_SEEN * (known or 0) and _travels_unseen(phases.tables)
    found = (known if is_unseen else seen or known) or 0
    if not found:
        notes.append("The size of the gradients was not seen; set job.gradients.bytes.")
    if is_unseen and len(phases.tables) > 1:
        notes.append(
            f"Less was seen to travel than the gradients; all of them ({found:,.0f} bytes) are taken to in every step. "
            "Where less is sent (compression, Local SGD), set job.gradients.bytes."
        )
    # how many tensors there are matters to a negotiation only, which torch does not have
    gradients: dict[str, Any] = {"bytes": float(found), "tensors": 1}
    first = first_ready(phases.tables, Gradients.first_ready)
    if first is not None:
        gradients["first_ready"] = first
    if groups := seen_groups(phases.tables):
        return gradients | {"groups": len(groups.ready), "ready": list(groups.ready), "shares": list(groups.shares)}
    count = None if is_unseen else measures.communication.num_collectives_per_step
    return gradients | {"groups": max(1, round(count)) if count else 8}


def _travels_unseen(tables: Sequence[RankTable]) -> bool:
    """DDP sends its groups from C++: on devices, and where arrivals were lost, only what the script called is heard."""
    return any(map(runs_ahead, tables)) or bool(without_arrivals(tables))


def _input(
    measures: Measures,
    phases: Phases,
    doctor: Mapping[str, Any] | None,
    random: np.random.Generator,
    notes: list[str],
) -> dict[str, Any]:
    batches = (measures.step.batches_per_step if measures.step else None) or 1
    if measures.input.batch_size is None:
        notes.append("The batch of a rank was not seen; samples a second are batches a second.")
    samples = seen_samples(measures, phases.tables, notes) or batches
    found: dict[str, Any] = {"samples": samples, "batches": batches}
    found |= _read(measures, float(phases.duration_ns.mean() / 1e9), samples, data_place(doctor or {}))
    waited, training = seconds(phases, ("input",))[:, _INNER], _training_s(phases)
    has_waited = bool(waited.mean() > 0.02 * training.mean())
    if measures.input.num_workers == 0:
        if has_waited:
            notes.append("Ranks made their batches themselves (num_workers=0); that time counts as forward.")
    elif has_waited:
        # ranks waited for it, so it was as fast as it can be
        rate = ranged_rate(training, float(samples), random)
        found |= {"source": "local"} | found | {"loader_samples_per_s": rate}
    elif "source" not in found:
        notes.append("Nobody waited for input, so how fast it can be is not known; it is taken for no limit.")
    return found


def _read(measures: Measures, step_s: float, samples: int, place: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a sample asks of storage; empty when the recorder saw no reading, or nobody measured the storage."""
    rate, opens = measures.input.read_bytes_per_s, measures.input.opens_per_s
    if not rate or place is None:
        return {}
    samples_per_s = samples * measures.environment.num_ranks / step_s
    return {
        "source": "shared" if is_network(place.get("file_system")) else "local",
        "sample_bytes": rate / samples_per_s,
        "opens_per_sample": (opens or 0.0) / samples_per_s,
    }
