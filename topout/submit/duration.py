"""How long a job may run, as people and schedulers write it.

A bare number is refused: Slurm reads it as minutes, others as seconds.
"""

import re

from topout.schema.errors import TopoutError

_UNITS_S = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_UNITS = re.compile(r"(?:(\d+(?:\.\d+)?)([dhms]))+", re.ASCII)
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+):([0-5]?\d):([0-5]?\d)", re.ASCII)


def parse_duration(text: str, option: str = "--time") -> int:
    """Seconds: `2h`, `90m`, `1d12h`, `1.5h`, `02:00:00` and `1-12:00:00`, each unit at most once.

    `option`: where it was said.
    """
    compact = "".join(text.split()).lower()
    seconds = _from_units(compact) if _UNITS.fullmatch(compact) else _from_clock(compact)
    if not seconds:
        is_below = seconds == 0 or re.match(r"-\d", compact)
        why = "it is neither like 1d12h or 90m, nor like 02:00:00"
        if is_below:
            why = "it must be positive"
        elif compact.isdecimal():
            why = "a bare number would be minutes to Slurm and seconds to others"
        raise TopoutError(f"{text!r} is not a time.", why=why, do=f"try {option} 2h")
    return seconds


def _from_units(text: str) -> int | None:
    parts = re.findall(r"([\d.]+)([dhms])", text)
    units = [unit for _, unit in parts]
    if units != [unit for unit in _UNITS_S if unit in units]:
        return None
    return round(sum(float(number) * _UNITS_S[unit] for number, unit in parts))


def _from_clock(text: str) -> int | None:
    found = _CLOCK.fullmatch(text)
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return days * 86400 + hours * 3600 + minutes * 60 + seconds
