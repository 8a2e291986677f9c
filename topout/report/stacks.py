"""Columns of stacked time: where a step goes at each point of a study, and before and after a change side by side."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import floor, log10

from topout.report import svg
from topout.report.axes import framed, grid_line, stop_words
from topout.report.escape import text
from topout.report.sections.phases import colour_class

LIKE_PHASE = {
    "compute": "backward",
    "stragglers": "wait",
    "negotiation": "tensor",
    "communication": "transfer",
    "cores": "other",
    "failures": "bubble",
}
"""Parts of a simulated step in the colours of the phases they are made of."""
GAP = 0.22
MOST_TICKS = 6


@dataclass(frozen=True, kw_only=True)
class Column:
    """One stack; `parts` from below, in `unit` of the chart."""

    parts: dict[str, float]
    words: Sequence[str]
    is_faint: bool = False
    """What was before a change, beside what is after it."""


@dataclass(frozen=True, kw_only=True)
class Stacks:
    spoken: str
    x_title: str
    y_title: str
    groups: Sequence[tuple[str, Sequence[Column]]]
    """Name of a place on the axis and the columns that stand there."""
    names: Sequence[str]
    """All parts, in the order of a column, as the legend has them."""
    renamed: dict[str, str] = field(default_factory=dict)
    """What the legend calls a part, where its own name would mislead."""
    has_long_names: bool = False
    """Of the places on the axis: they are set slanting."""


def colour_of(part: str) -> str:
    return colour_class(LIKE_PHASE.get(part, part))


def draw_stacks(stacks: Stacks) -> str:
    tallest = max((sum(column.parts.values()) for _, group in stacks.groups for column in group), default=0.0) or 1.0
    top, ticks = _scale(tallest)
    num = max(len(stacks.groups), 1)
    drawn = "".join(grid_line(tick / top) for tick in ticks)
    stops = ""
    for number, (_, group) in enumerate(stacks.groups):
        width = (1 - GAP) / max(len(group), 1) / num
        for place, column in enumerate(group):
            left = (number + GAP / 2) / num + place * width
            drawn += _column(column, stacks.names, left, width * (0.94 if len(group) > 1 else 1), top)
            stops += (
                f'<span {stop_words(column.words)} data-kind="stack" '
                f'style="left:{left * 100:.2f}%;width:{width * 100:.2f}%"></span>'
            )
    plot = svg.box(drawn, attributes=f'role="img" aria-label="{text(stacks.spoken)}"')
    digits = 0 if ticks[-1] >= 10 else 2 if ticks[-1] < 1 else 1
    y_ticks = [(tick / top, f"{tick:,.{digits}f}") for tick in ticks]
    every = -(-num // 14)
    x_ticks = [((number + 0.5) / num, name) for number, (name, _) in enumerate(stacks.groups) if number % every == 0]
    slant = stacks.has_long_names
    return framed(plot + stops, stacks.y_title, y_ticks, stacks.x_title, x_ticks, slant=slant) + _legend(stacks)


def _scale(tallest: float) -> tuple[float, list[float]]:
    rough = tallest / (MOST_TICKS - 1)
    power = 10.0 ** floor(log10(rough))
    step = next(digit * power for digit in (1, 2, 2.5, 5, 10) if digit * power >= rough)
    top = tallest * 1.05
    return top, [number * step for number in range(MOST_TICKS + 1) if number * step <= top]


def _column(column: Column, names: Sequence[str], left: float, width: float, top: float) -> str:
    first, last = (round(edge * svg.BOX_WIDTH) for edge in (left, left + width))
    base, drawn = 0.0, ""
    for name in names:
        value = column.parts.get(name, 0.0)
        low, high = (round((1 - level / top) * svg.BOX_HEIGHT) for level in (base, base + value))
        base += value
        if low > high:
            faint = " faint" if column.is_faint else ""
            drawn += f'<path class="{colour_of(name)}{faint}" d="M{first} {low}V{high}H{last}V{low}z"/>'
    return drawn


def _legend(stacks: Stacks) -> str:
    used = [name for name in stacks.names if any(c.parts.get(name, 0.0) > 0 for _, g in stacks.groups for c in g)]
    items = "".join(
        f'<li><i class="{colour_of(name)}"></i>{text(stacks.renamed.get(name, name))}</li>' for name in reversed(used)
    )
    if any(column.is_faint for _, group in stacks.groups for column in group):
        items += "<li>left, faint: before the change; right: after it</li>"
    return f'<ul class="legend">{items}</ul>'
