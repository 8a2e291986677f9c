"""What evaluation and checkpoints cost, and how often they came, as a recording shows them."""

from typing import Any

import numpy as np

from topout.analyze.steps import Phases
from topout.schema.measures import PHASES, Measures
from topout.study.bootstrap import Floats, mean, ranged_rate

_SAMPLES = 1_000_000
"""How many an evaluation has is not recorded; its seconds are, so any number does as long as the rate fits it."""


def seen_evaluation(measures: Measures, phases: Phases, random: np.random.Generator) -> dict[str, Any]:
    occasions = _occasions(phases, "evaluation")
    if len(occasions) == 0:
        return {}
    is_sharded = len(measures.serial.ranks) != 1
    num_ranks = len(phases.tables) if is_sharded else 1
    return {
        "samples": _SAMPLES,
        "samples_per_s": _rate(occasions, _SAMPLES / num_ranks, random),
        "every_steps": round(len(phases.steps) / len(occasions)),
        "is_sharded": is_sharded,
    }


def seen_checkpoint(measures: Measures, phases: Phases, random: np.random.Generator) -> dict[str, Any]:
    occasions = _occasions(phases, "checkpoint")
    if len(occasions) == 0:
        return {}
    memory = measures.memory
    size = float((memory.parameter_bytes or 0) + (memory.optimizer_bytes or 0)) or 1.0
    every_steps = round(len(phases.steps) / len(occasions))
    return {"bytes": size, "bytes_per_s": _rate(occasions, size, random), "every_steps": every_steps}


def _occasions(phases: Phases, name: str) -> Floats:
    """Seconds of each, on the rank that took longest: the others wait for it."""
    longest = phases.phase_ns[:, :, PHASES.index(name)].max(axis=0) / 1e9
    # a millisecond of it in each of many steps is bookkeeping around one
    return np.asarray(longest[longest > 0.01 * longest.max(initial=0.0)], dtype=np.float64)


def _rate(occasions: Floats, amount: float, random: np.random.Generator) -> float | dict[str, float]:
    if len(occasions) == 1:
        return amount / mean(occasions)
    return ranged_rate(occasions, amount, random)
