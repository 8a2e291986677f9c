"""The sentences of rules: `str.format` over measures, with sizes as people read them.

Besides what `str.format` does, `{memory.peak_device_bytes:bytes}` reads `20 GiB`, and a clause in brackets is left out
when something in it was not measured: `An allocation[ of {memory.requested_bytes:bytes}] failed.`

Not a template language: no conditions, no loops. What needs those is two rules.
"""

import re
from string import Formatter
from typing import Any

_CLAUSE = re.compile(r"\[([^\[\]]*)\]")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


class _NotMeasuredError(Exception):
    """A placeholder stands for None."""


class _SentenceFormatter(Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if value is None:
            raise _NotMeasuredError
        if format_spec == "bytes":
            return bytes_text(float(value))
        # 25 % is written with a space everywhere in topout
        return str(super().format_field(value, format_spec)).replace("%", " %")


def bytes_text(num_bytes: float) -> str:
    """Three digits and a binary unit, as devices state their memory: 20 GiB, 1.5 MiB."""
    amount, power = num_bytes, 0
    while abs(amount) >= 999.5 and power < len(_UNITS) - 1:
        amount, power = amount / 1024, power + 1
    return f"{amount:.3g} {_UNITS[power]}"


def fill(sentence: str, context: dict[str, Any]) -> str:
    """The sentence with its placeholders filled; a value not measured outside any bracket reads `?`."""
    with_clauses = _CLAUSE.sub(lambda clause: _fill_or(clause[1], context, ""), sentence)
    return _fill_or(with_clauses, context, None)


def _fill_or(text: str, context: dict[str, Any], otherwise: str | None) -> str:
    formatter = _SentenceFormatter()
    try:
        return formatter.vformat(text, (), context)
    except _NotMeasuredError:
        if otherwise is not None:
            return otherwise
    parts = []
    for literal, name, spec, _ in formatter.parse(text):
        value = formatter.get_field(name, (), context)[0] if name is not None else ""
        parts.append(literal + ("?" if value is None else formatter.format_field(value, spec or "")))
    return "".join(parts)
