"""Numbers as a reader meets them on the page: three digits that matter, a unit, and a dash for what was not measured.

Not for `analysis.json`, which keeps every digit.
"""

from math import isfinite

NOT_MEASURED = "–"
_NARROW_SPACE = "\u202f"
ACCEPTABLE_EFFICIENCY = 0.8
"""POP's rule of thumb: an efficiency below this deserves a look."""


def is_low(efficiency: float) -> bool:
    """As it reads: what is shown as 0.80 is not below it."""
    return round(efficiency, 2) < ACCEPTABLE_EFFICIENCY


def _digits(value: float) -> str:
    if abs(value) >= 100 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def duration(ns: float | None) -> str:
    """`12.3 ms`; minutes and hours from 120 s on."""
    if ns is None or not isfinite(ns):
        return NOT_MEASURED
    seconds = ns / 1e9
    if seconds >= 7200:
        return f"{int(seconds // 3600)}{_NARROW_SPACE}h {int(seconds % 3600 // 60):02d}{_NARROW_SPACE}min"
    if seconds >= 120:
        return f"{int(seconds // 60)}{_NARROW_SPACE}min {int(seconds % 60):02d}{_NARROW_SPACE}s"
    for size, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if abs(ns) >= size:
            return f"{_digits(ns / size)}{_NARROW_SPACE}{unit}"
    return f"{ns:.0f}{_NARROW_SPACE}ns"


def share(value: float | None) -> str:
    """`43 %`, `4.3 %`; a small share is not rounded to nothing."""
    if value is None:
        return NOT_MEASURED
    percent = value * 100
    if 0 < percent < 0.05:
        return f"<{_NARROW_SPACE}0.1{_NARROW_SPACE}%"
    body = f"{percent:.0f}" if abs(percent) >= 9.95 or percent == 0 else f"{percent:.1f}"
    return f"{body}{_NARROW_SPACE}%"


def factor(value: float | None) -> str:
    """An efficiency, as POP writes them."""
    return NOT_MEASURED if value is None else f"{value:.2f}"


def amount(value: float | None) -> str:
    """A plain count or rate: `1,234`, `12.3`; thousands and more of them as `1.2 M`."""
    if value is None:
        return NOT_MEASURED
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(value) >= size:
            return f"{_digits(value / size)}{_NARROW_SPACE}{unit}"
    return _digits(value) if value % 1 else f"{value:,.0f}"


def size(num_bytes: float | None) -> str:
    """Bytes in powers of 1024."""
    if num_bytes is None:
        return NOT_MEASURED
    value, unit = float(num_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f}{_NARROW_SPACE}B" if unit == "B" else f"{_digits(value)}{_NARROW_SPACE}{unit}"


def ranks(numbers: tuple[int, ...]) -> str:
    """`rank 3`, `ranks 0–7, 12`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    body = ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in runs)
    return f"rank{'s' if len(numbers) > 1 else ''} {body}"
