"""`topout reproduce`: published tables beside what the model says of them."""

import sys
import textwrap
from dataclasses import asdict
from difflib import get_close_matches
from typing import Annotated

from cyclopts import Parameter

from topout.report.json_report import encode
from topout.schema.errors import ExitCode, TopoutError
from topout.study.published import names, tables
from topout.study.published.table import Row, Table

REPRODUCE_VERSION = 1


def reproduce(
    *wanted: Annotated[str, Parameter(name="TABLE")], json: Annotated[bool, Parameter(negative="")] = False
) -> int:
    """Compute published scaling tables again: published, predicted, error, and which points the model has seen.

    Parameters
    ----------
    wanted
        Names of tables; all of them when left out.
    json
        Print all of it as JSON.
    """
    for name in wanted:
        if name not in names():
            near = get_close_matches(name, names(), 1)
            raise TopoutError(f"No table {name!r}.", why=f"There are {', '.join(names())}.",
                              do=f"topout reproduce {near[0] if near else names()[0]}")  # fmt: skip
    found = list(tables(list(wanted) or names()))
    if json:
        rows = [
            {**asdict(table), "rows": [{**asdict(row), "error": row.error} for row in table.rows]} for table in found
        ]
        sys.stdout.write(encode({"version": REPRODUCE_VERSION, "tables": rows}))
    else:
        print("\n\n".join(map(_text, found)))
    return ExitCode.FINE


def _text(table: Table) -> str:
    width = max(len(row.what) for row in table.rows)
    lines = [f"{table.title}  [{table.name}]", f"  {table.source}", ""]
    lines.append(f"  {table.unit:<{width}}  {'published':>11} {'predicted':>11} {'error':>8}")
    lines += [f"  {row.what:<{width}}  {_number(row.published):>11} {_number(row.predicted):>11} {_error(row):>8}"
              for row in table.rows]  # fmt: skip
    seen = sum(row.is_calibrated for row in table.rows)
    if table.parameters:
        lines += ["", f"  {len(table.parameters)} fitted to {seen} points: {'; '.join(table.parameters)}."]
    for note in table.notes:
        lines += ["", *textwrap.wrap(note, 100, initial_indent="  ", subsequent_indent="  ")]
    return "\n".join(lines)


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _error(row: Row) -> str:
    if row.is_calibrated:
        return "fitted"
    return "" if row.error is None else f"{row.error:+.1%}"
