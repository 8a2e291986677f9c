"""`topout explain`: what a rule or a verdict means, how it is measured, and what to do about it."""

import shutil
import sys
import textwrap
from typing import Annotated

from cyclopts import Parameter

from topout.recommend.catalogue import Explanation, explain_name, explanations
from topout.report.json_report import encode
from topout.schema.errors import ExitCode


def explain(code: str | None = None, /, *, json: Annotated[bool, Parameter(negative="")] = False) -> int:
    """Explain a rule (IN01) or a verdict (load-imbalance); without one, list all.

    Parameters
    ----------
    code
        A code of a finding, or the name of a verdict.
    json
        Print name, kind, title and text as JSON.
    """
    found = [explain_name(code)] if code is not None else explanations()
    if json:
        sys.stdout.write(encode(found[0] if code is not None else found))
    else:
        width = min(shutil.get_terminal_size((100, 24)).columns, 100)
        print(_listing(found) if code is None else _reflowed(found[0], width))
    print(f"\nNext    {'topout explain IN01' if code is None else 'topout analyze'}", file=sys.stderr)
    return ExitCode.FINE


def _listing(found: list[Explanation]) -> str:
    widest = max(len(item.name) for item in found)
    lines = []
    for kind in dict.fromkeys(item.kind for item in found):
        lines += [
            f"{kind.capitalize()}s",
            *(f"  {item.name:<{widest}}  {item.title}" for item in found if item.kind == kind),
            "",
        ]
    return "\n".join(lines[:-1])


def _reflowed(item: Explanation, width: int) -> str:
    """Paragraphs fitted to the terminal; indented blocks are code or tables and stay as they are."""
    first, *rest = item.text.split("\n\n")
    paragraphs = [
        part if part.startswith(" ") or "\n " in part else textwrap.fill(part, width, break_on_hyphens=False)
        for part in rest
    ]
    return "\n\n".join([f"{item.name}  {first}", *paragraphs])
