"""One line of a doctor's report: what was found, what was expected, and what to do when the two differ.

Not a measurement; probes measure (`facts`), judges make checks of what all hosts found.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf
from statistics import median

from topout.preflight.facts import Facts

UNEVEN_SHARE = 0.75
"""A host that reaches less than this of what the others reach sets the pace for all of them."""
_MOST_NAMED = 4


class Verdict(StrEnum):
    """From best to worst; a check that could not be made does not make a machine unfit."""

    FINE = "fine"
    NOT_MEASURED = "not measured"
    WARNING = "warning"
    UNFIT = "unfit"

    @property
    def badness(self) -> int:
        return list(Verdict).index(self)


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing looked at on all hosts."""

    group: str
    name: str
    verdict: Verdict
    value: str
    """With its unit; names hosts where they differ."""
    expectation: str
    fix: str | None = None
    """What to do; None when fine."""
    hosts: tuple[str, ...] = ()
    """Those it concerns; empty when it holds for all."""
    number: float | None = None
    """The worst host's value, for programs."""
    unit: str | None = None


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One host's part of a check."""

    text: str
    verdict: Verdict = Verdict.FINE
    number: float | None = None
    fix: str | None = None


def over_hosts(
    hosts: Sequence[Facts],
    group: str,
    name: str,
    expectation: str,
    read: Callable[[Facts], Reading | None],
    *,
    unit: str | None = None,
    is_rate: bool = False,
    ample: float = inf,
) -> Check | None:
    """One check of what each host says; None when no host has anything to say.

    With `is_rate`, a host that is far slower than the others is named even if it is fast enough by itself, unless it
    reaches `ample`: from there on nobody waits for it.
    """
    readings = [(facts.host, reading) for facts in hosts if (reading := read(facts)) is not None]
    if not readings:
        return None
    if is_rate:
        readings = _with_laggards(readings, ample)
    worst = max(readings, key=lambda pair: pair[1].verdict.badness)[1]
    concerned = tuple(host for host, reading in readings if reading.verdict == worst.verdict)
    numbers = [reading.number for _, reading in readings if reading.number is not None]
    return Check(
        group=group,
        name=name,
        verdict=worst.verdict,
        value=_said_by(readings),
        expectation=expectation,
        fix=worst.fix if worst.verdict is not Verdict.FINE else None,
        hosts=() if len(concerned) == len(hosts) else concerned,
        number=(min(numbers) if is_rate else worst.number) if numbers else None,
        unit=unit,
    )


def unmeasured(hosts: Sequence[Facts], group: str, name: str, expectation: str, stage: str) -> Check:
    """A check whose probe said nothing, with the reason it gave."""
    reasons = list(dict.fromkeys(reason for facts in hosts if (reason := facts.not_measured.get(stage))))
    value = "; ".join(reasons) or "not looked at"
    return Check(group=group, name=name, verdict=Verdict.NOT_MEASURED, value=value, expectation=expectation)


def named(hosts: Sequence[str]) -> str:
    """`n1, n2, n3, n4 and 12 more`."""
    more = f" and {len(hosts) - _MOST_NAMED} more" if len(hosts) > _MOST_NAMED else ""
    return ", ".join(hosts[:_MOST_NAMED]) + more


def _with_laggards(readings: list[tuple[str, Reading]], ample: float) -> list[tuple[str, Reading]]:
    numbers = [reading.number for _, reading in readings if reading.number is not None]
    if len(numbers) < 2:
        return readings
    usual = median(numbers) if len(numbers) > 2 else max(numbers)
    marked = []
    for host, reading in readings:
        is_behind = reading.number is not None and reading.number < min(UNEVEN_SHARE * usual, ample)
        if is_behind and reading.number is not None and reading.verdict is Verdict.FINE:
            share = f"{100 * reading.number / usual:.0f} %"
            fix = (
                f"{host} reaches {share} of the others and holds them back: leave it out, or look what else runs there"
            )
            marked.append((host, replace(reading, verdict=Verdict.WARNING, fix=fix)))
        else:
            marked.append((host, reading))
    return marked


def _said_by(readings: Sequence[tuple[str, Reading]]) -> str:
    by_text: dict[str, list[str]] = {}
    for host, reading in readings:
        by_text.setdefault(reading.text, []).append(host)
    if len(by_text) == 1:
        return readings[0][1].text
    if len(by_text) <= 3:
        return "; ".join(f"{text} ({named(names)})" for text, names in by_text.items())
    measured = [(host, reading) for host, reading in readings if reading.number is not None]
    if not measured:
        return f"{len(by_text)} different: " + "; ".join(
            f"{text} ({named(names)})" for text, names in list(by_text.items())[:2]
        )
    lowest, highest = (pick(measured, key=lambda pair: pair[1].number or 0.0) for pick in (min, max))
    return f"{lowest[1].text} ({lowest[0]}) to {highest[1].text} ({highest[0]})"
