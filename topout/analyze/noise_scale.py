"""The gradient noise scale that the training wrote down: its last value, and its way there.

Not measured here: the rank that trains knows gradients, this reads what it said. None where it was not asked to.
"""

import numpy as np

from topout.schema.event import NOT_GIVEN
from topout.schema.measures import NoiseScale
from topout.trace.table import Int64s, RankTable

MOST_POINTS = 200
_PREFIX = "noise_scale_"
_COLUMNS = ("step", "thousandths", "low_thousandths", "high_thousandths", "drifted", "num_samples", "batch")


def measure_noise_scale(tables: list[RankTable]) -> NoiseScale | None:
    """From the first rank that has any; they all know the same."""
    for table in tables:
        columns = {name: table.counters.get(_PREFIX + name) for name in _COLUMNS}
        found = {name: column.values for name, column in columns.items() if column is not None}
        if len(found) == len(_COLUMNS):
            return _measured(found)
    return None


def _measured(columns: dict[str, Int64s]) -> NoiseScale | None:
    # a rank that was killed may have left a row of some columns only
    num_rows = min(map(len, columns.values()))
    if num_rows == 0:
        return None
    shown = np.unique(np.linspace(0, num_rows - 1, min(num_rows, MOST_POINTS)).round().astype(np.int64))
    last = {name: column[num_rows - 1] for name, column in columns.items()}
    values, lows, highs = (
        tuple(_samples(number) for number in columns[name][shown])
        for name in ("thousandths", "low_thousandths", "high_thousandths")
    )
    return NoiseScale(
        value=_samples(last["thousandths"]),
        low=_samples(last["low_thousandths"]) or 0.0,
        high=_samples(last["high_thousandths"]),
        has_drifted=bool(last["drifted"]),
        num_samples=int(last["num_samples"]),
        batch_size=int(last["batch"]),
        steps=tuple(columns["step"][shown].tolist()),
        values=values,
        lows=lows,
        highs=highs,
    )


def _samples(thousandths: np.int64) -> float | None:
    return None if thousandths == NOT_GIVEN else float(thousandths) / 1000
