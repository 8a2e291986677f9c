"""Which device would serve this job: each of the hardware table by the step it would take, and what bounds it there.

From a run on a device of the table, the time that is computing is scaled by the ratio of arithmetic and by that of
memory bandwidth; the two are the range, and the one that gains less is the bound. From a run on anything else, the
operations of a step are divided by the device's peak at the utilisation that trainings usually reach. What is not
computing (input, communication, host code) stays as it was: a device cannot help there, and a fast one shows it.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from topout.schema.errors import TopoutError
from topout.schema.hardware import PRECISIONS, Device, Figure, devices, find_row
from topout.schema.measures import Measures

COMPUTING = ("copy", "forward", "backward", "optimizer")
USUAL_UTILISATION = (0.2, 0.35, 0.5)
"""Low, middle and high share of its peak that a device reaches in training."""
_INSTEAD: dict[str, tuple[str, ...]] = {"fp64": (), "fp32": (), "tf32": ("fp32",)}
"""What computes in place of a precision that a device lacks; of those not named, halves and then single precision."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A job on one device."""

    device: str
    step_s: float
    low_s: float
    high_s: float
    samples_per_s: float | None
    bound: str
    """`compute`, `bandwidth`, `memory size` (it does not fit), `not the device`, or `as measured`: the run's own."""
    other_s: float
    """Of the step: input, communication and host code, which no device makes shorter."""
    cost_per_million: float | None = None
    """Samples; in the currency of the prices."""
    kilowatt_hours_per_million: float | None = None


@dataclass(frozen=True)
class Prices:
    """What the user says devices cost, and when that was so."""

    date: str
    currency: str
    per_hour: dict[str, float]
    watts: dict[str, float]


def rank_devices(measures: Measures, precision: str = "bf16", prices: Prices | None = None) -> list[Fit]:
    """One rank on each device of the table that has the figures, quickest first; what does not fit comes last."""
    if precision not in PRECISIONS:
        raise TopoutError(
            f"--precision {precision} is not known.",
            why=f"It is one of {', '.join(PRECISIONS)}.",
            do="--precision bf16",
        )
    if measures.step is None:
        raise TopoutError("The run has no steps.", why="Nothing says how long one takes.", do="topout run train.py")
    busy_s = _busy_s(measures)
    other_s = max(0.0, measures.step.mean_ns / 1e9 - busy_s)
    old = find_row(measures.environment.device_name or "")
    flops = _flops_of_a_rank(measures)
    if old is None and not flops:
        raise TopoutError(
            "Neither the device of the run nor its operations are known.",
            why="The hardware table does not have the device, and no operations were counted.",
            do="record on a GPU of `topout hardware`, or with a loop whose backward topout can follow",
        )
    if old is not None and rate_for(old, precision) is None:
        raise TopoutError(
            f"{old.name}, the device of the run, has no rate for {precision}.",
            why="The hardware table does not have it, so there is nothing to scale by.",
            do=f"--precision in which the job computed; see topout hardware '{old.name}'",
        )
    found = []
    for device in devices():
        times = _ratios(old, device, busy_s, precision) if old is not None else _from_peak(flops, device, precision)
        if times is None or device.kind == "cpu":
            continue
        low, middle, high, bound = times
        needed = _needed_bytes(measures, is_on_device=old is not None)
        memory = device.figures.get("memory")
        # the job has fitted the device that it ran on, whatever its maker prints
        if needed and memory and needed > memory.value and device is not old:
            bound = "memory size"
        elif other_s > high:
            bound = "not the device"
        elif device is old:
            # both ratios are one, and which of them binds was not seen
            bound = "as measured"
        found.append(_fit(device, (low, middle, high), other_s, bound, measures=measures, prices=prices))
    return sorted(found, key=lambda fit: (fit.bound == "memory size", fit.step_s))


def unranked_prices(prices: Prices, fits: Sequence[Fit]) -> str | None:
    """What the user may have misspelt: names in the prices that are of no device in the ranking. None: there are none.

    A processor is a device of the table and yet not compared; so is one without a figure for the precision.
    """
    ranked = {fit.device.lower() for fit in fits}
    rows = {name: find_row(name) for name in (prices.per_hour | prices.watts) if name not in ranked}
    names = [name for name, row in rows.items() if row is None or row.name.lower() not in ranked]
    if not names:
        return None
    return (
        f"No device that is ranked goes by {', '.join(map(repr, names))} in the prices: `topout hardware` has the "
        "names, and processors are not compared."
    )


_AMOUNTS = ("per_hour", "watts")
_PRICES = 'date = "2026-11-01", then [device."H200"] with per_hour = 3.2 and watts = 700'


def read_prices(path: Path) -> Prices:
    try:
        text = path.read_text(encoding="utf-8")
        table = tomllib.loads(text)
    except FileNotFoundError:
        do = f"check the path, or write it: {_PRICES}"
        raise TopoutError(f"There is no file {path}.", why="--prices names it.", do=do) from None
    except OSError as error:
        raise TopoutError(f"{path} cannot be read.", why=error.strerror or str(error), do=_PRICES) from error
    except ValueError as error:
        raise TopoutError(f"{path} holds no prices.", why=f"It is no TOML: {error}.", do=_PRICES) from error
    lack = "It is empty." if not text.strip() else _lack(table)
    if lack is not None:
        raise TopoutError(f"{path} holds no prices.", why=lack, do=_PRICES)
    per_hour, watts = (_amounts(path, table["device"], key) for key in _AMOUNTS)
    return Prices(str(table["date"]), str(table.get("currency", "")), per_hour, watts)


def _lack(table: Mapping[str, Any]) -> str | None:
    """What keeps it from being a table of prices."""
    rows = table.get("device")
    if not isinstance(rows, dict) or not rows:
        return "It has no [device.NAME]."
    if "date" not in table:
        return "It has no date, and prices change."
    for name, row in rows.items():
        if not isinstance(row, dict) or not any(key in row for key in _AMOUNTS):
            return f"Device {name!r} has neither {' nor '.join(_AMOUNTS)}."
    return None


def amount_of(amounts: Mapping[str, float], device: str) -> float | None:
    """Of prices or watts: by the name as it stands, by that of the table, or by another that means the same row."""
    row = find_row(device)
    for name in (device, row.name if row else device):
        if name.lower() in amounts:
            return amounts[name.lower()]
    return next((amount for name, amount in amounts.items() if row is not None and find_row(name) is row), None)


def _amounts(path: Path, rows: Mapping[str, Any], key: str) -> dict[str, float]:
    found = {name.lower(): row[key] for name, row in rows.items() if key in row}
    for name, amount in found.items():
        if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 <= amount < inf:
            raise TopoutError(
                f"{path}: {key} of {name!r} is {amount}.", why="It is a number, 0 or more.", do=f"{key} = 3.2"
            )
    return found


def _busy_s(measures: Measures) -> float:
    """Of a step: what computed. Shares are those of the window, to which a last evaluation belongs and to no step."""
    window, step = measures.window, measures.step
    whole_ns = window.elapsed_ns / window.num_steps if window is not None else step.mean_ns if step is not None else 0.0
    return whole_ns / 1e9 * sum(measures.shares.get(name, 0.0) for name in COMPUTING)


def _flops_of_a_rank(measures: Measures) -> float:
    return (measures.compute.flops_per_step or 0.0) / max(1, measures.environment.num_ranks)


def _needed_bytes(measures: Measures, *, is_on_device: bool) -> int:
    """Of a run on a processor the state alone is known to move along; its other memory is not a device's."""
    memory = measures.memory
    state = (memory.parameter_bytes or 0) + (memory.gradient_bytes or 0) + (memory.optimizer_bytes or 0)
    return max(state, memory.peak_device_bytes or 0) if is_on_device else state


@dataclass(frozen=True, kw_only=True)
class Placement:
    """A rank's step under a roofline: how fast it computed, and between which intensities it must lie.

    A run counts operations, not bytes. It cannot have moved more than the memory could in the time that computed, and
    must have moved its weights, gradients and optimizer state at least; that is the range.
    """

    flops: float
    flops_per_s: float
    least_intensity: float | None
    """None: the bandwidth is not known."""
    most_intensity: float | None
    """None: the size of the state is not known."""


def place_step(measures: Measures, bytes_per_s: float | None) -> Placement | None:
    """None where no operations were counted or nothing computed; `bytes_per_s` is the memory's of the run's device."""
    flops = _flops_of_a_rank(measures)
    if measures.step is None or not flops:
        return None
    busy_s = _busy_s(measures)
    if busy_s <= 0:
        return None
    memory = measures.memory
    # weights are read by forward and by backward, gradients written and read, state and weights read and written
    moved = 4 * (memory.parameter_bytes or 0) + 2 * (memory.gradient_bytes or 0) + 2 * (memory.optimizer_bytes or 0)
    least = flops / (busy_s * bytes_per_s) if bytes_per_s else None
    most = flops / moved if moved else None
    if least is not None and most is not None and most < least:
        # state that stays in a cache moves less than it would; then the upper end says nothing
        most = None
    return Placement(flops=flops, flops_per_s=flops / busy_s, least_intensity=least, most_intensity=most)


def rate_for(device: Device, precision: str) -> tuple[str, Figure] | None:
    """The arithmetic a job of that precision uses, and its name: the nearest that the device has, and none that is less
    precise than libraries would choose.

    Where halves are slower than single precision, libraries compute in single precision.
    """
    allowed = _INSTEAD.get(precision, ("fp16", "fp32"))
    wanted = next(((name, found) for name in (precision, *allowed) if (found := device.rate(name))), None)
    single = device.rate("fp32")
    if wanted is not None and single is not None and "fp32" in allowed and single.value > wanted[1].value:
        return "fp32", single
    return wanted


def time_ratios(old: Device, new: Device, precision: str) -> tuple[float, float] | None:
    """Time on the new one over that on the old, by arithmetic and by bandwidth; None where a figure is missing."""
    pairs = [
        [found[1] if (found := rate_for(device, precision)) else None for device in (old, new)],
        [device.figures.get("memory_bandwidth") for device in (old, new)],
    ]
    ratios = [before.value / after.value for before, after in pairs if before is not None and after is not None]
    return (ratios[0], ratios[1]) if len(ratios) == len(pairs) else None


def _ratios(old: Device, new: Device, busy_s: float, precision: str) -> tuple[float, float, float, str] | None:
    ratios = time_ratios(old, new, precision)
    if ratios is None:
        return None
    by_rate, by_bandwidth = ratios
    low, high = sorted((by_rate * busy_s, by_bandwidth * busy_s))
    return low, (low * high) ** 0.5, high, "compute" if by_rate > by_bandwidth else "bandwidth"


def _from_peak(flops: float, new: Device, precision: str) -> tuple[float, float, float, str] | None:
    rate = rate_for(new, precision)
    if rate is None:
        return None
    high, middle, low = (flops / (rate[1].value * share) for share in USUAL_UTILISATION)
    return low, middle, high, "compute"


def _fit(
    device: Device,
    busy: tuple[float, float, float],
    other_s: float,
    bound: str,
    *,
    measures: Measures,
    prices: Prices | None,
) -> Fit:
    low, middle, high = (other_s + time_s for time_s in busy)
    samples = measures.rank_samples_per_step
    rate = samples / middle if samples else None
    price = amount_of(prices.per_hour, device.name) if prices else None
    watts = amount_of(prices.watts, device.name) if prices else None
    hours = 1e6 / rate / 3600 if rate else None
    return Fit(
        device=device.name,
        step_s=middle,
        low_s=low,
        high_s=high,
        samples_per_s=rate,
        bound=bound,
        other_s=other_s,
        cost_per_million=price * hours if price is not None and hours else None,
        kilowatt_hours_per_million=watts * hours / 1000 if watts is not None and hours else None,
    )
