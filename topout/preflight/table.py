"""The doctor's page for the terminal: the verdict, then a line a check, then what to do about those that are not fine.

Not for machines; `doctor.json` holds every number. Colour only adds: every mark is also a word.
"""

import textwrap
from collections.abc import Sequence

from topout.preflight.check import Check, Verdict, named
from topout.preflight.diagnosis import Diagnosis
from topout.schema.counted import counted

_MARKS = {Verdict.FINE: "ok", Verdict.NOT_MEASURED: "–", Verdict.WARNING: "!", Verdict.UNFIT: "UNFIT"}
_COLOURS = {Verdict.FINE: "32", Verdict.NOT_MEASURED: "2", Verdict.WARNING: "33", Verdict.UNFIT: "1;31"}
_NAME_WIDTH = 34
_MARK_WIDTH = 7


def render(diagnosis: Diagnosis, *, width: int, color: bool) -> str:
    lines = [_headline(diagnosis, color)]
    group = None
    for check in diagnosis.checks:
        if check.group != group:
            group = check.group
            lines += ["", _paint(group, "1", color)]
        lines += _line(check, width, color)
    return "\n".join(lines) + "\n"


def summary(checks: Sequence[Check]) -> str:
    """`2 unfit, 1 warning, 3 not measured`."""
    counts = {verdict: sum(check.verdict is verdict for check in checks) for verdict in reversed(Verdict)}
    words = [f"{number} {_plural(verdict, number)}" for verdict, number in counts.items() if number]
    return ", ".join(words)


def _headline(diagnosis: Diagnosis, color: bool) -> str:
    names = [facts.host for facts in diagnosis.hosts]
    word = {Verdict.UNFIT: "UNFIT", Verdict.WARNING: "FIT, with warnings"}.get(diagnosis.verdict, "FIT")
    title = _paint(word, _COLOURS[diagnosis.verdict], color)
    many = f"{counted(len(names), 'host')}"
    return f"{title}  {many}: {named(names)} · {summary(diagnosis.checks)} · {diagnosis.duration_s:.0f} s"


def _line(check: Check, width: int, color: bool) -> list[str]:
    mark = _paint(f"{_MARKS[check.verdict]:<{_MARK_WIDTH}}", _COLOURS[check.verdict], color)
    left = _MARK_WIDTH + _NAME_WIDTH + 2
    room = max(width - left, 30)
    says = textwrap.wrap(check.value, room, break_on_hyphens=False) or [""]
    expects = textwrap.wrap(f"expected  {check.expectation}", room, subsequent_indent=" " * 10, break_on_hyphens=False)
    names = textwrap.wrap(check.name, _NAME_WIDTH - 1, break_on_hyphens=False) or [""]
    # the expectation follows on the same line when there is room, as it mostly is
    if len(says) == 1 and len(expects) == 1 and len(says[0]) + 3 + len(expects[0]) <= room:
        says, expects = [f"{says[0]}   {_paint(expects[0], '2', color)}"], []
    body = says + [_paint(text, "2", color) for text in expects]
    rows = [f"  {mark}{names[0]:<{_NAME_WIDTH}}{body[0]}"]
    for number in range(1, max(len(names), len(body))):
        name = names[number] if number < len(names) else ""
        text = body[number] if number < len(body) else ""
        rows.append(f"  {'':<{_MARK_WIDTH}}{name:<{_NAME_WIDTH}}{text}".rstrip())
    if check.fix and check.verdict is not Verdict.FINE:
        rows += textwrap.wrap(
            f"do        {check.fix}",
            left + room,
            initial_indent=" " * left,
            subsequent_indent=" " * (left + 10),
            break_on_hyphens=False,
        )
    return rows


def _plural(verdict: Verdict, number: int) -> str:
    return "warnings" if verdict is Verdict.WARNING and number > 1 else str(verdict)


def _paint(text: str, code: str, color: bool) -> str:
    return f"\033[{code}m{text}\033[0m" if color else text
