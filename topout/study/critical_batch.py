"""The critical batch: as the user gives it, as a probe wrote it down, or as a run's noise scale suggests it.

A probe measures it (`topout.probe_batch`). The noise scale has its order of magnitude and lay below it by five times
where both were measured (docs/noise-scale.md), so what comes of it has a range as wide.
"""

import json
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from topout.schema.errors import TopoutError
from topout.schema.measures import NoiseScale
from topout.study.description import NARROWED

GUESSED = 1.5
"""A figure without a range is taken to be good within this factor."""
NOISE_LOW, NOISE_HIGH = 2.0, 5.0
"""By so much the noise scale may lie above and below the critical batch."""
LEAST, MOST = 1e-6, 1e18
"""Samples: fewer than any batch has, more than there are anywhere."""
FILE = "critical_batch.json"


@dataclass(frozen=True, kw_only=True)
class CriticalBatch:
    """In samples of all ranks, with an 80 % range."""

    value: float
    low: float
    high: float
    origin: str

    @property
    def ranged(self) -> tuple[float, float, float]:
        return self.value, self.low, self.high


def given(text: str) -> CriticalBatch:
    """`2000`, `2000:1500:3000`, or the file of a probe."""
    if text.endswith(".json"):
        return from_probe(Path(text))
    try:
        parts = [float(part) for part in text.split(":")]
        value, low, high = parts if len(parts) == 3 else (parts[0], parts[0] / GUESSED, parts[0] * GUESSED)
        if not LEAST <= low <= value <= high <= MOST or len(parts) not in (1, 3):
            raise ValueError(text)
    except (ValueError, IndexError):
        raise TopoutError(
            f"{text!r} is no critical batch.",
            why=f"It is a number of samples from {LEAST:g} to {MOST:g}, or VALUE:LOW:HIGH in that sense, or the .json "
            "of a probe.",
            do="--critical-batch 2000:1500:3000",
        ) from None
    return CriticalBatch(value=value, low=low, high=high, origin="as given")


def from_probe(path: Path) -> CriticalBatch:
    """What `json.dump(dataclasses.asdict(topout.probe_batch(...)))` wrote: value, low and high."""
    do = f"json.dump(dataclasses.asdict(topout.probe_batch(...)), open({FILE!r}, 'w'))"
    try:
        table: Any = json.loads(path.read_text(encoding="utf-8"))
        value, low, high = (table[key] for key in ("value", "low", "high"))
    except (KeyError, TypeError) as error:
        raise TopoutError(f"{path} holds no probe.", why="One has value, low and high.", do=do) from error
    except (OSError, ValueError, RecursionError) as error:
        raise TopoutError(f"{path} holds no probe.", why=f"{type(error).__name__}: {error}", do=do) from error
    if value is None:
        raise TopoutError(
            f"{path} has a bound of the critical batch, and no value.",
            why=f"The sizes that were tried do not bend: it lies between {low} and {high}.",
            do="probe with larger or smaller batches, or give --critical-batch yourself",
        )
    has_limit = high is not None and high != inf
    numbers = [value, low, high if has_limit else value]
    if not all(isinstance(one, int | float) for one in numbers) or not LEAST <= low <= value <= numbers[2] <= MOST:
        raise TopoutError(f"{path} holds no probe.", why=f"value, low and high are {value}, {low}, {high}.", do=do)
    return CriticalBatch(
        value=float(value),
        low=_of_eighty(low, value),
        high=_of_eighty(high, value) if has_limit else value * NOISE_HIGH,
        origin=f"the probe in {path}",
    )


def from_noise_scale(noise: NoiseScale | None) -> CriticalBatch | None:
    """None where the run has none, or only a bound: `said_of_bound`."""
    if noise is None or not noise.value or noise.value <= 0 or noise.high is None:
        return None
    drifted = ", which moved threefold within its last window" if noise.has_drifted else ""
    return CriticalBatch(
        value=noise.value,
        low=min(_of_eighty(noise.low, noise.value), noise.value / NOISE_LOW) or noise.value / NOISE_HIGH,
        high=max(_of_eighty(noise.high, noise.value), noise.value * NOISE_HIGH),
        origin=f"the run's noise scale{drifted}; a probe is surer (topout.probe_batch)",
    )


def said_of_bound(noise: NoiseScale | None) -> list[str]:
    """Why a noise scale was measured and is not planned with."""
    if noise is None or noise.high is not None:
        return []
    return [
        f"The run's noise scale is only known to lie above {noise.low:,.0f}, without upper limit from "
        f"{noise.num_samples} steps, so it is not taken for the critical batch. A longer run with a larger window= "
        "(docs/noise-scale.md) may limit it."
    ]


def _of_eighty(edge: float, value: float) -> float:
    """Where an 80 % range ends, of one of 90 %, as a probe and a noise scale have it; both are wide, so by factors."""
    return float(value * (edge / value) ** NARROWED)
