"""What evaluation and checkpoints cost, and how often they came, as a recording shows them.

Those that came with the beginning of an epoch are counted in samples, for on more ranks an epoch has fewer steps; those
that came in the middle of epochs, in steps. Where epochs are not seen, samples are the careful guess. Of a run whose
loaders were shortened (`--data-share`), epochs and evaluations are taken for as many times as long.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topout.analyze.broadcasts import is_inside
from topout.analyze.evaluations import feeds_training
from topout.analyze.segments import PHASE, Segments
from topout.analyze.steps import Phases
from topout.schema.event import NOT_GIVEN, Kind
from topout.schema.measures import PHASES, Measures
from topout.study.bootstrap import Floats, mean, ranged_rate
from topout.trace.table import Bools, Int64s

_SAMPLES = 1_000_000
"""How many an evaluation has is not recorded; its seconds are, so any number does as long as the rate fits it."""
_MOST_AN_EPOCH = 4
"""Pauses that come with epochs come so often in one at most."""


@dataclass(frozen=True)
class Kept:
    """Shares of their batches that loaders handed out; 1: all, or there was none."""

    epochs: float = 1.0
    evaluations: float = 1.0


def kept_shares(run: Mapping[str, Any], phases: Phases, notes: list[str]) -> Kept:
    spec = run.get("spec")
    share = spec.get("data_share") if isinstance(spec, dict) else None
    if not isinstance(share, float) or not 0 < share < 1:
        return Kept()
    if any(str(note).startswith("--data-share") for table in phases.tables for note in table.facts.get("notes") or ()):
        notes.append(
            f"--data-share {share:g} left a loader whole, and which is not known: evaluations and saves are taken as "
            "they came. Where epochs were shorter, set every_samples of job.evaluation and job.checkpoint."
        )
        return Kept()
    trains, evaluates = _loaders(phases)
    return Kept(share if trains else 1.0, share if evaluates else 1.0)


def _loaders(phases: Phases) -> tuple[bool, bool]:
    """Whether one fed training, and one the evaluations of the window, of those that `--data-share` shortens."""
    trains, evaluates = False, False
    for table, segments in zip(phases.tables, phases.segments, strict=True):
        rows = table.rows(Kind.INPUT, Kind.LOADER)
        is_fed = feeds_training(table, rows, table.start_ns[table.rows(Kind.BACKWARD)])[table.kind[rows] == Kind.LOADER]
        is_apart = _is_evaluating(segments, table.start_ns[rows[table.kind[rows] == Kind.LOADER]])
        trains, evaluates = trains or bool(np.any(is_fed & ~is_apart)), evaluates or bool(np.any(is_apart))
    return trains, evaluates


def _is_evaluating(segments: Segments, times_ns: Int64s) -> Bools:
    places = np.searchsorted(segments.edges_ns, times_ns, side="right") - 1
    is_known = (places >= 0) & (places < len(segments.phase))
    evaluating: Bools = is_known & (segments.phase[np.where(is_known, places, 0)] == PHASE["evaluation"])
    return evaluating


def seen_evaluation(
    phases: Phases, random: np.random.Generator, samples: int, kept: Kept, notes: list[str]
) -> dict[str, Any]:
    """`samples`: of a step of all ranks."""
    places, occasions = _occasions(phases, "evaluation")
    if len(occasions) == 0:
        return {}
    is_sharded = _num_evaluating(phases) > 1
    num_ranks = len(phases.tables) if is_sharded else 1
    if len(phases.tables) == 1:
        notes.append(
            "Whether ranks share an evaluation is not known of a run of one; one is taken to do it for all. Where they "
            "share it, set job.evaluation.is_sharded."
        )
    return {
        "samples": _SAMPLES,
        "samples_per_s": _rate(occasions / kept.evaluations, _SAMPLES / num_ranks, random),
        "is_sharded": is_sharded,
    } | _every(phases, places, samples / kept.epochs)


def seen_checkpoint(
    measures: Measures, phases: Phases, random: np.random.Generator, samples: int, kept: Kept
) -> dict[str, Any]:
    """`samples`: of a step of all ranks."""
    places, occasions = _occasions(phases, "checkpoint")
    if len(occasions) == 0:
        return {}
    memory = measures.memory
    size = float((memory.parameter_bytes or 0) + (memory.optimizer_bytes or 0)) or 1.0
    every = _every(phases, places, samples / kept.epochs)
    return {"bytes": size, "bytes_per_s": _rate(occasions, size, random)} | every


def said_of_shares(kept: Kept, evaluation: Mapping[str, Any], checkpoint: Mapping[str, Any]) -> list[str]:
    said = []
    if kept.epochs < 1 and ("every_samples" in evaluation or "every_samples" in checkpoint):
        said.append(
            f"Epochs had {kept.epochs:g} of their batches (--data-share): what came with them is taken to come "
            f"{1 / kept.epochs:.3g} times as seldom without it; that is too seldom where they have fewer batches."
        )
    if kept.evaluations < 1 and evaluation:
        said.append(
            f"Evaluations had {kept.evaluations:g} of their batches (--data-share) and are taken to last "
            f"{1 / kept.evaluations:.3g} times as long without it; that is too long where they have fewer batches."
        )
    return said


def _num_evaluating(phases: Phases) -> int:
    """Ranks that evaluate at least half as long as the one that does most; saves, often of one alone, do not count."""
    own_ns = phases.phase_ns[:, :, PHASES.index("evaluation")].sum(axis=1)
    return int((own_ns > own_ns.max() / 2).sum())


def _occasions(phases: Phases, name: str) -> tuple[NDArray[np.intp], Floats]:
    """In which steps of the window, and seconds of each on the rank that took longest: the others wait for it."""
    longest = phases.phase_ns[:, :, PHASES.index(name)].max(axis=0) / 1e9
    # a millisecond of it in each of many steps is bookkeeping around one
    places = np.flatnonzero(longest > 0.01 * longest.max(initial=0.0))
    return places, np.asarray(longest[places], dtype=np.float64)


def _every(phases: Phases, places: NDArray[np.intp], samples: float) -> dict[str, Any]:
    steps = len(phases.steps) / len(places)
    return {"every_samples": steps * samples} if _is_of_epochs(phases, places) else {"every_steps": round(steps)}


def _is_of_epochs(phases: Phases, places: NDArray[np.intp]) -> bool:
    """Whether an epoch begins in most of these steps, or most epochs in one of them; also where neither can be told."""
    begins = _epoch_begins(phases)
    if begins is None:
        return True
    # an epoch that began with the window had none before it, and after the last step none follows
    last = len(phases.steps) - 1
    inner, begun = (set(found[(found > 0) & (found < last)].tolist()) for found in (places, begins))
    # with many of them to an epoch, one meets its beginning by chance
    enough = min(len(inner), len(begun)) if len(inner) < _MOST_AN_EPOCH * len(begun) else len(inner)
    return not inner or 2 * len(inner & begun) > enough


def _epoch_begins(phases: Phases) -> NDArray[np.intp] | None:
    """Steps of the window in which an iterator began that feeds training; None where no rank asked a loader."""
    for table, edges_ns in zip(phases.tables, phases.edges_ns, strict=True):
        rows = table.rows(Kind.INPUT)
        # input that the script marks itself has no iterator
        rows = rows[table.ref[rows] != NOT_GIVEN]
        # where computing is not seen, an evaluation's loader would be taken for training's
        rows = rows[~is_inside(table, table.start_ns[rows], table.rows(Kind.EVALUATION))]
        rows = rows[feeds_training(table, rows, table.start_ns[table.rows(Kind.BACKWARD)])]
        if len(rows):
            # a row without samples is the start of an iterator
            begins_ns = table.start_ns[rows[table.value[rows] == 0]]
            places: NDArray[np.intp] = np.searchsorted(edges_ns, begins_ns, side="right") - 1
            return places
    return None


def _rate(occasions: Floats, amount: float, random: np.random.Generator) -> float | dict[str, float]:
    if len(occasions) == 1:
        return amount / mean(occasions)
    return ranged_rate(occasions, amount, random)
