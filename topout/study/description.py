"""Systems and jobs out of TOML or JSON, checked; and the ranges of their numbers, to draw from.

    latency_s = 3e-6
    latency_s = {value = 3e-6, low = 2e-6, high = 5e-6}      # an 80 % range

A misspelt key, a wrong kind or an impossible value is an error that names the place and the nearest valid word.
"""

import json
import shlex
import tomllib
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from difflib import get_close_matches
from importlib.resources import files
from math import isfinite
from pathlib import Path
from typing import Any, Generic, TypeVar, get_type_hints

import numpy as np

from topout.schema.errors import TopoutError
from topout.schema.run_folder import RUN_JSON, is_file, is_folder, unreadable
from topout.study.job import Job
from topout.study.system import System

Described = TypeVar("Described")
CALIBRATION = "calibration.json"
"""The file in a run folder that describes its job and its machine."""
NORMAL_TENTH = 1.2815515655446004
"""So many standard deviations above the mean lies the upper tenth of a normal distribution."""
NARROWED = NORMAL_TENTH / 1.6448536269514722
"""As far from its value as an edge of a 90 % range of a normal distribution lies that of an 80 % one."""
_WORDS = {"negotiation": ("none", "coordinator", "bitvector"), "source": ("none", "shared", "local", "cached")}
_AT_LEAST_ONE = ("nodes", "ranks_per_node", "tensors", "groups", "samples", "batches", "prefetch")
_ABOVE_ZERO = ("latency_s", "forward_s", "backward_s", "links", "sharpness")
_LINKS = ("inside", "between")
"""Of a link nothing is free: unlike storage, it has a bandwidth."""
_SHARES = ("first_ready", "ready", "shares")
MOST_GROUPS = 10_000
"""Of gradients: more than any network has tensors to put into them."""
_AT_MOST = {"groups": MOST_GROUPS, "prefetch": 10_000}
_WHOLE_BELOW = 2**63


@dataclass(frozen=True)
class Ranged(Generic[Described]):
    """A description and the 80 % ranges of those of its numbers that are not known exactly."""

    value: Described
    ranges: dict[tuple[str, ...], tuple[float, float]]

    def draw(self, random: np.random.Generator) -> Described:
        """One that the ranges allow: each number normal on both sides of its value.

        Seconds of one table go up and down together: a rank that is slow forward is slow backward. What is above 0
        stays above it, for 0 often says "not known" or "no limit"; whole numbers stay whole.
        """
        drawn = self.value
        together: dict[tuple[str, ...], float] = {}
        for path, (low, high) in self.ranges.items():
            value = get(self.value, path)
            kin = path[:-1] if path[-1].endswith("_s") and not path[-1].endswith("per_s") else path
            deviation = together.setdefault(kin, random.standard_normal())
            side = (high - value) if deviation > 0 else (value - low)
            least = 0.1 * (min(low, value) if low > 0 else value)
            found = max(value + deviation * side / NORMAL_TENTH, least)
            drawn = put(drawn, path, max(round(found), min(value, 1)) if isinstance(value, int) else found)
        return drawn


def read_system(name_or_path: str) -> Ranged[System]:
    return _read(System, name_or_path, "systems")


def read_job(name_or_path: str) -> Ranged[Job]:
    return _read(Job, name_or_path, "jobs")


def names(folder: str) -> list[str]:
    """Of what comes with topout."""
    return sorted(entry.name.removesuffix(".toml") for entry in files("topout.study").joinpath(folder).iterdir()
                  if entry.name.endswith(".toml"))  # fmt: skip


def get(description: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        description = getattr(description, part)
    return description


def put(description: Any, path: tuple[str, ...], value: Any) -> Any:
    """The same with one value changed."""
    head, *rest = path
    inner = put(getattr(description, head), tuple(rest), value) if rest else value
    return replace(description, **{head: inner})


def describe(kind: type[Described], table: dict[str, Any], where: str) -> Ranged[Described]:
    reader = _Reader(where)
    return Ranged(reader.build(kind, table, ()), reader.ranges)


def change(described: Ranged[Described], assignment: str) -> Ranged[Described]:
    """`between.bytes_per_s=25e9`: what a what-if says."""
    name, is_given, text = assignment.partition("=")
    path = tuple(name.strip().split("."))
    if not is_given:
        raise TopoutError(
            f"{assignment!r} changes nothing.", why="A change is NAME=VALUE.", do="between.bytes_per_s=25e9"
        )
    table: Any = _plain_value(text.strip())
    for part in reversed(path):
        table = {part: table}
    built = _Reader(assignment).build(type(described.value), table, (), onto=described.value)
    return Ranged(built, {other: known for other, known in described.ranges.items() if other != path})


def _plain_value(text: str) -> bool | float | str:
    if text in ("true", "false"):
        return text == "true"
    try:
        return float(text)
    except ValueError:
        return text


def _read(kind: type[Described], name_or_path: str, folder: str) -> Ranged[Described]:
    path = Path(name_or_path)
    if name_or_path not in names(folder) and is_folder(path):
        path = calibration_of(path)
    if path.suffix not in (".toml", ".json"):
        if path.suffix == ".py":
            raise TopoutError(
                f"{path} is a script, and no description of a {folder[:-1]}.",
                why="Nothing is run here: seconds and bytes come out of a run that was recorded.",
                do=f"topout run {shlex.quote(str(path))}, then topout calibrate, and name the run folder",
            )
        if name_or_path not in names(folder):
            others = "or a .toml or .json file, or a run folder after topout calibrate"
            raise _unknown(f"{folder[:-1]} {name_or_path!r}", name_or_path, names(folder), others)
        text = files("topout.study").joinpath(folder, f"{name_or_path}.toml").read_text("utf-8")
        return describe(kind, tomllib.loads(text), name_or_path)
    try:
        text = path.read_text(encoding="utf-8")
        table = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except PermissionError as error:
        raise unreadable(path, error) from error
    except OSError as error:
        why = error.strerror or str(error)
        raise TopoutError(
            f"{path} cannot be read.", why=why, do=f"check the path, or name one of {', '.join(names(folder))}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise TopoutError(f"{path} cannot be read.", why=str(error), do="mend the place that it names") from error
    return describe(kind, _own_table(table, folder[:-1], path), str(path))


def _own_table(content: Any, name: str, path: Path) -> dict[str, Any]:
    """That of the job or the system, which the whole file may be."""
    found = content.get(name, content) if isinstance(content, dict) else None
    # what topout writes has a version: a calibration, with a table for each, but also records and analyses of runs
    if isinstance(found, dict) and (found is not content or "version" not in found):
        return found
    is_of_run = is_file(path.parent / RUN_JSON)
    raise TopoutError(
        f"{path} holds no {name}.",
        why=f"It has no table of that name, and describes none itself. {CALIBRATION} of a run does.",
        do=f"topout calibrate {shlex.quote(str(path.parent)) if is_of_run else 'RUN'}, and name the run folder",
    )


def calibration_of(run: Path) -> Path:
    """What `topout calibrate` wrote into a run folder."""
    path = run / CALIBRATION
    if not is_file(path):
        do = f"topout calibrate {shlex.quote(str(run))}"
        raise TopoutError(f"{run} has no calibration.", why=f"There is no {CALIBRATION}.", do=do)
    return path


class _Reader:
    """Builds one description; `ranges` fills up meanwhile."""

    def __init__(self, where: str) -> None:
        self._where = where
        self.ranges: dict[tuple[str, ...], tuple[float, float]] = {}

    def build(self, kind: Any, table: Any, path: tuple[str, ...], onto: Any = None) -> Any:
        if not isinstance(table, dict):
            raise TopoutError(f"{self._place(path)} is {table!r}.", why="It is a table.", do=f"[{'.'.join(path)}]")
        known = {entry.name: entry for entry in fields(kind)}
        for key in table:
            if key not in known:
                raise _unknown(self._place((*path, key)), key, list(known), "no such key")
        hints = get_type_hints(kind)
        values = {}
        for key, entry in known.items():
            at = (*path, key)
            if key in table:
                inner = None if onto is None else getattr(onto, key)
                is_table = is_dataclass(hints[key])
                values[key] = (
                    self.build(hints[key], table[key], at, inner)
                    if is_table
                    else self._leaf(hints[key], table[key], at)
                )
            elif onto is None and _is_needed(entry):
                raise TopoutError(f"{self._place(at)} is missing.", why="It has no default.", do=f"add {key} = …")
        return kind(**values) if onto is None else replace(onto, **values)

    def _place(self, path: tuple[str, ...]) -> str:
        return f"{self._where}: {'.'.join(path)}" if path else self._where

    def _leaf(self, kind: type, value: Any, path: tuple[str, ...]) -> Any:
        place = self._place(path)
        if kind in (float, int):
            return _checked_number(kind, self._without_range(value, path), place, path)
        if kind == tuple[float, ...]:
            if not isinstance(value, list):
                raise TopoutError(f"{place} is {value!r}.", why="It is a list of numbers.", do="[0.3, 0.7, 1.0]")
            return tuple(_checked_number(float, each, place, path) for each in value)
        if not isinstance(value, kind):
            kinds = "true or false" if kind is bool else "a text"
            raise TopoutError(f"{place} is {value!r}.", why=f"It is {kinds}.", do="see docs/simulate.md")
        if len(path) > 1 and path[-1] in _WORDS and value not in _WORDS[path[-1]]:
            raise _unknown(f"{place} = {value!r}", str(value), list(_WORDS[path[-1]]), "no such word")
        return value

    def _without_range(self, value: Any, path: tuple[str, ...]) -> Any:
        if not isinstance(value, dict):
            return value
        place = self._place(path)
        if set(value) != {"value", "low", "high"} or not all(map(_is_finite, value.values())):
            raise TopoutError(
                f"{place} is {value}.", why="A range is value, low and high.", do="{value = 3, low = 2, high = 5}"
            )
        if not value["low"] <= value["value"] <= value["high"]:
            raise TopoutError(f"{place} is {value}.", why="value lies between low and high.", do="order the three")
        self.ranges[path] = (float(value["low"]), float(value["high"]))
        return value["value"]


def _is_needed(entry: Field[Any]) -> bool:
    return entry.default is MISSING and entry.default_factory is MISSING


def _is_finite(value: Any) -> bool:
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)
    except OverflowError:
        # a whole number of more digits than a float has room for
        return False


def _checked_number(kind: type, value: Any, place: str, path: tuple[str, ...]) -> float | int:
    name = path[-1]
    if not _is_finite(value):
        raise TopoutError(f"{place} is {value!r}.", why="It is a number.", do="SI units: 25e9, not '25 GB/s'")
    whole = int(value)
    if kind is int and whole != value:
        raise TopoutError(f"{place} is {value}.", why="It is a whole number.", do=f"{whole} or {whole + 1}")
    is_link_rate = name == "bytes_per_s" and path[0] in _LINKS
    limits = [
        (name in _AT_LEAST_ONE, value >= 1, "at least 1"),
        (name in _ABOVE_ZERO or is_link_rate, value > 0, "above 0"),
        (name in _SHARES, 0 <= value <= 1, "between 0 and 1"),
        (name in _AT_MOST, value <= _AT_MOST.get(name, value), f"at most {_AT_MOST.get(name, value):,}"),
        (kind is int, value < _WHOLE_BELOW, "below 2^63"),
        (True, value >= 0, "not negative"),
    ]
    for applies, holds, words in limits:
        if applies and not holds:
            raise TopoutError(f"{place} is {value}.", why=f"It is {words}.", do="mend the value")
    return whole if kind is int else float(value)


def _unknown(place: str, word: str, known: list[str], why: str) -> TopoutError:
    near = get_close_matches(word, known, 1)
    return TopoutError(
        f"{place} is not known.",
        why=f"There are {', '.join(known)}; {why}.",
        do=f"did you mean {near[0]}?" if near else "choose one of them",
    )
