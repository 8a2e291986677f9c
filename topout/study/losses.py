"""A curve of losses out of a file, as a training wrote it: CSV or JSON.

    samples,loss            step,loss                      {"samples": [...], "loss": [...]}
    6400,2.31               100,2.31                       [{"step": 100, "loss": 2.31}, ...]

Samples are those of all ranks since the beginning. A file that counts steps needs the batch of all ranks.
"""

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topout.schema.errors import TopoutError

_DO = "a CSV with the columns samples (or step) and loss"
_STEPS = ("step", "steps")


@dataclass(frozen=True, kw_only=True)
class Losses:
    name: str
    samples: NDArray[np.float64]
    """Rising, above 0."""
    losses: NDArray[np.float64]


def read_losses(path: Path, batch: float | None = None) -> Losses:
    """`batch`: samples of a step over all ranks, for a file that counts steps."""
    columns = _columns(path)
    counted = next((name for name in ("samples", *_STEPS) if name in columns), None)
    if counted is None or "loss" not in columns:
        raise TopoutError(f"{path} has no curve.", why=f"Its columns are {', '.join(columns) or 'none'}.", do=_DO)
    if counted in _STEPS and batch is None:
        raise TopoutError(
            f"{path} counts steps.",
            why="How many samples a step had is not known.",
            do="--curve-batch 256, the batch of all ranks",
        )
    at, values = (_numbers(columns[name], name, path) for name in (counted, "loss"))
    if len(at) != len(values):
        raise TopoutError(f"{path} has {len(at)} {counted} and {len(values)} losses.", why="They are pairs.", do=_DO)
    if counted in _STEPS:
        at = at * (batch or 1)
    # the same step twice (a restart) counts the second time
    order = np.argsort(at[::-1], kind="stable")
    at, values = at[::-1][order], values[::-1][order]
    is_first = np.r_[True, at[1:] != at[:-1]] & (at > 0) if len(at) else np.zeros(0, dtype=bool)
    if is_first.sum() < 2:
        raise TopoutError(f"{path} has no curve.", why=f"It has {int(is_first.sum())} losses.", do=_DO)
    return Losses(name=str(path), samples=at[is_first], losses=values[is_first])


def _columns(path: Path) -> dict[str, list[Any]]:
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            return _of_json(json.loads(text))
        rows = list(csv.DictReader(text.splitlines(), skipinitialspace=True))
    except (OSError, ValueError, csv.Error) as error:
        raise TopoutError(f"{path} cannot be read.", why=str(error), do=_DO) from error
    return {name.strip(): [row[name] for row in rows] for name in (rows[0] if rows else {}) if name}


def _of_json(found: Any) -> dict[str, list[Any]]:
    if isinstance(found, dict) and all(isinstance(column, list) for column in found.values()):
        return found
    if isinstance(found, list) and found and all(isinstance(row, dict) for row in found):
        return {name: [row.get(name) for row in found] for name in found[0]}
    raise ValueError("it is neither a table of columns nor a list of rows")


def _numbers(column: list[Any], name: str, path: Path) -> NDArray[np.float64]:
    try:
        values = np.array([float(value) for value in column])
    except (TypeError, ValueError):
        values = np.array([np.nan])
    if not np.isfinite(values).all():
        bad = next((value for value in column if not _is_finite(value)), None)
        raise TopoutError(f"{path}: {name} is {bad!r}.", why="Every one is a finite number.", do="leave that row out")
    return values


def _is_finite(value: Any) -> bool:
    try:
        return bool(np.isfinite(float(value)))
    except (TypeError, ValueError):
        return False
