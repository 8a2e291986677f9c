"""`json` for what loads before a training script's first line: the same C code, without what surrounds it.

`json` brings `re` and `enum` along, and the three take 10 ms, nearly as long as Python's own start. Texts are written
to the letter as `json.dumps` writes them, and what cannot be read is a ValueError here, too.

Not where anything else of `json` is needed: hooks, other separators, numbers that are not Python's own, UTF-16.
"""

from __future__ import annotations

from _json import encode_basestring_ascii, make_encoder, make_scanner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["dumps", "dumps_indented", "loads"]

_SPACE = " \t\n\r"


class _Rules:
    """What the C scanner asks of a `json.JSONDecoder`."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int = float, int
    parse_constant = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}.__getitem__


_scan: Any = make_scanner(_Rules)  # type: ignore[arg-type]


def loads(text: str | bytes) -> Any:
    """ValueError for what is not JSON in UTF-8, RecursionError for brackets within brackets, thousands deep."""
    whole = (text if isinstance(text, str) else text.decode("utf-8", "surrogatepass")).strip(_SPACE)
    try:
        value, end = _scan(whole, 0)
    except StopIteration as error:
        raise ValueError(f"no JSON value at character {error.value}") from None
    if end != len(whole):
        raise ValueError(f"more than one JSON value: from character {end} on")
    return value


def dumps(value: Any, *, default: Callable[[Any], Any] | None = None) -> str:
    # the first is for finding circles, and keeps what it saw when an error ends the search
    encode: Any = make_encoder({}, default or _refuse, encode_basestring_ascii, None, ": ", ", ", False, False, True)
    return "".join(encode(value, 0))


def dumps_indented(value: Any, margin: str = "\n") -> str:
    """As `json.dumps(value, indent=1)`."""
    inner = f"{margin} "
    if value and isinstance(value, dict):
        entries = [f"{_key(key)}: {dumps_indented(item, inner)}" for key, item in value.items()]
        return f"{{{inner}{f',{inner}'.join(entries)}{margin}}}"
    if value and isinstance(value, list | tuple):
        return f"[{inner}{f',{inner}'.join([dumps_indented(item, inner) for item in value])}{margin}]"
    return dumps(value)


def _key(key: object) -> str:
    """Numbers become texts there, too."""
    return encode_basestring_ascii(key) if isinstance(key, str) else dumps({key: 0})[1:-4]


def _refuse(value: object) -> Any:
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
