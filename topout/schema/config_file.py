"""Settings out of a TOML file: one table, known keys, and the line each value stands on.

An unknown key is an error that names the file, the line and the nearest valid key; a misspelt setting that is silently
left out would be found only after a job has run wrong. Not for files with nested tables.
"""

import re
import tomllib
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from topout.schema.errors import TopoutError
from topout.schema.run_folder import unreadable

Kind = type[str] | type[int] | type[float] | type[bool] | type[list[str]]
_NAMES: dict[Kind, str] = {
    str: "text", int: "whole number", float: "number", bool: "true or false", list: "list of texts",
}  # fmt: skip
_WHOLE_BELOW = 2**63
"""As TOML has it."""


def read_table(
    path: Path, table: str, kinds: Mapping[str, tuple[Kind, ...]], *, other_tables: Collection[str] = ()
) -> dict[str, tuple[Any, int]]:
    """Key -> value and line. `kinds` are those a key may be of; lists hold texts and come back as tuples.

    `other_tables` belong to somebody else.
    """
    try:
        text = path.read_text(encoding="utf-8")
        content = tomllib.loads(text)
    except PermissionError as error:
        raise unreadable(path, error) from error
    except OSError as error:
        raise TopoutError(f"{path} cannot be read.", why=error.strerror or str(error), do="check the path") from error
    except tomllib.TOMLDecodeError as error:
        raise TopoutError(f"{path} cannot be read.", why=str(error), do="mend the line it names") from error
    except (ValueError, RecursionError) as error:
        # bytes that are no text, thousands of digits, or of brackets one in another
        raise TopoutError(f"{path} cannot be read.", why=str(error), do="write it anew, as TOML in UTF-8") from error
    for name in content:
        if name != table and name not in other_tables:
            raise _unknown(path, line_of(text, name), "table", name, [table, *other_tables])
    values = content.get(table, {})
    if not isinstance(values, dict):
        raise TopoutError(
            f"{path}: {table} is not a table.", why=f"settings stand under [{table}]", do=f"write [{table}] on a line"
        )
    found = {}
    for key, value in values.items():
        line = line_of(text, key, table)
        if key not in kinds:
            raise _unknown(path, line, "key", key, list(kinds))
        found[key] = (_checked(path, line, key, value, kinds[key]), line)
    return found


def line_of(text: str, key: str, table: str | None = None) -> int:
    """Where a key, or with no table given a table or key outside of one, is written; 1 when that cannot be told."""
    inside = None
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[+\s*[\"']?([^\]\"'.]+?)[\"']?\s*[\].]", line)
        if header:
            inside = header[1]
            if table is None and inside == key:
                return number
        elif inside == table and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[=.]", line):
            return number
    return 1


def _checked(path: Path, line: int, key: str, value: Any, kinds: tuple[Kind, ...]) -> Any:
    if isinstance(value, int) and abs(value) >= _WHOLE_BELOW:
        raise TopoutError(
            f"{path}:{line}: {key} is a number of {len(str(abs(value)))} digits.",
            why="whole numbers lie below 2^63",
            do=f"mend {key} in {path.name}",
        )
    texts = value if isinstance(value, list) else [value]
    if any(isinstance(text, str) and "\0" in text for text in texts):
        raise TopoutError(
            f"{path}:{line}: {key} = {value!r} is not possible.",
            why="no name and no word of a command holds a NUL character",
            do=f"mend {key} in {path.name}",
        )
    if list in kinds and isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    # a bool is an int to Python, and a mistake to everybody else
    if type(value) in kinds and not isinstance(value, list):
        return value
    raise TopoutError(
        f"{path}:{line}: {key} = {value!r} is not of the right type.",
        why=f"{key} takes a {' or a '.join(_NAMES[kind] for kind in kinds)}",
        do=f"mend {key} in {path.name}",
    )


def _unknown(path: Path, line: int, what: str, name: str, valid: list[str]) -> TopoutError:
    near = get_close_matches(name, valid, n=1)
    return TopoutError(
        f"{path}:{line}: unknown {what} {name!r}.",
        why=f"valid are {', '.join(valid)}",
        do=f"did you mean {near[0]!r}?" if near else f"remove {name!r}",
    )
