"""Charts with axes: lines with bands, dots, dashed forecasts and shaded regions, on linear or logarithmic scales.

Labels are HTML around a drawing that stretches (see `svg`), so they stay sharp and wrap nowhere. Every point is also a
stop that the keyboard reaches and a screen reader speaks; the page shows the same words as a tooltip. Not for stacked
time, which is in `stacks`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import floor, log10

import numpy as np

from topout.report import svg
from topout.report.escape import text
from topout.report.svg import Floats

MARGIN = 0.035
"""Of the width, left free on both sides, so that no dot stands on the edge."""
NEAREST_LABELS = 0.055
"""Labels of an axis closer than this share of it would touch."""
MOST_TICKS = 7
LOOKS = frozenset(
    {"main", "ideal", "before", "local", "job", "wait", "transfer", "forward", "roof"}
    | {f"{kind}-{number}" for kind in ("law", "roof") for number in range(5)}
)
"""How a line is drawn; each is a class of page.css."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    title: str
    show: Callable[[float], str]
    is_log: bool = False
    ticks: tuple[float, ...] = ()
    """Exactly these, thinned where they would touch; nothing given, round numbers."""
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class Line:
    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    look: str = "main"
    has_dots: bool = False
    has_line: bool = True


@dataclass(frozen=True, kw_only=True)
class Stop:
    """What stands at a place, in words; without `y` it is the whole column above `x`."""

    x: float
    words: Sequence[str]
    y: float | None = None


@dataclass(frozen=True, kw_only=True)
class Chart:
    spoken: str
    """What the chart shows, for who cannot see it."""
    x: Axis
    y: Axis
    lines: Sequence[Line]
    stops: Sequence[Stop] = ()
    marks: Sequence[tuple[float, str]] = ()
    """Upright lines with a name: the knee, the fastest."""
    beyond: tuple[float, str] | None = None
    """From here to the right the chart is shaded, and why."""
    scale: "_Scales" = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", _Scales(self))


class _Scales:
    """From values to shares of the box."""

    def __init__(self, chart: Chart) -> None:
        across = [value for line in chart.lines for value in line.x] + [place for place, _ in chart.marks]
        upward = [value for line in chart.lines for part in (line.y, line.low, line.high) for value in part]
        self._x = _Scale(chart.x, across, margin=MARGIN)
        self._y = _Scale(chart.y, upward, margin=0.0)
        self.x_ticks = [(self.x(tick), chart.x.show(tick)) for tick in self._x.ticks()]
        self.y_ticks = [(self.y(tick), chart.y.show(tick)) for tick in self._y.ticks()]

    def x(self, value: float) -> float:
        return self._x.share(value)

    def y(self, value: float) -> float:
        return self._y.share(value)


class _Scale:
    def __init__(self, axis: Axis, values: Sequence[float], *, margin: float) -> None:
        self._axis = axis
        known = [value for value in values if np.isfinite(value) and (value > 0 or not axis.is_log)]
        low = axis.low if axis.low is not None else min(known, default=1.0)
        high = axis.high if axis.high is not None else max(known, default=1.0)
        if not axis.is_log and axis.low is None:
            low = min(0.0, low)
        if not axis.is_log and axis.high is None:
            high *= 1.04
        if high <= low:
            low, high = (low / 2, high * 2) if axis.is_log else (low, low + 1)
        self._from, self._to = self._place(low), self._place(high)
        room = (self._to - self._from) * margin
        if axis.is_log and axis.low is None and margin == 0.0:
            room = (self._to - self._from) * 0.04
        self._from, self._to = self._from - room, self._to + room
        self._low, self._high = low, high

    def _place(self, value: float) -> float:
        return log10(value) if self._axis.is_log else value

    def share(self, value: float) -> float:
        if self._axis.is_log and value <= 0:
            return 0.0
        return (self._place(value) - self._from) / (self._to - self._from)

    def ticks(self) -> list[float]:
        if self._axis.ticks:
            return _apart(sorted(set(self._axis.ticks)), self.share)
        found = _decades(self._low, self._high) if self._axis.is_log else _round_steps(self._low, self._high)
        return [tick for tick in found if -0.001 <= self.share(tick) <= 1.001]


def _apart(ticks: Sequence[float], share: Callable[[float], float]) -> list[float]:
    """The last and the first always, of the others those that touch neither neighbour."""
    kept = [ticks[0]]
    for tick in ticks[1:-1]:
        if share(tick) - share(kept[-1]) >= NEAREST_LABELS and share(ticks[-1]) - share(tick) >= NEAREST_LABELS:
            kept.append(tick)
    return [*kept, ticks[-1]] if len(ticks) > 1 else kept


def _decades(low: float, high: float) -> list[float]:
    powers = range(floor(log10(low)) - 1, floor(log10(high)) + 2)
    for digits in (range(1, 10), (1, 2, 3, 5), (1, 2, 5), (1, 3), (1,)):
        found = [
            digit * 10.0**power
            for power in powers
            for digit in digits
            if low * 0.9 <= digit * 10.0**power <= high * 1.1
        ]
        if len(found) <= MOST_TICKS:
            return found
    every = -(-len(found) // MOST_TICKS)
    return found[::every]


def _round_steps(low: float, high: float) -> list[float]:
    rough = (high - low) / (MOST_TICKS - 1)
    power = 10.0 ** floor(log10(rough))
    step = next(digit * power for digit in (1, 2, 2.5, 5, 10) if digit * power >= rough)
    first = int(np.ceil(low / step - 1e-9))
    return [number * step for number in range(first, first + MOST_TICKS + 1) if number * step <= high * (1 + 1e-9)]


def draw(chart: Chart) -> str:
    """The figure: drawing, ticks, names, stops and a legend."""
    scale = chart.scale
    drawn = _grid(scale) + _shade(chart) + "".join(_line(line, scale) for line in chart.lines)
    plot = svg.box(drawn, attributes=f'role="img" aria-label="{text(chart.spoken)}"')
    area = plot + _beyond_words(chart) + _marks(chart) + "".join(_stop(stop, scale) for stop in chart.stops)
    return framed(area, chart.y.title, scale.y_ticks, chart.x.title, scale.x_ticks) + _legend(chart.lines)


def framed(
    area: str,
    y_title: str,
    y_ticks: Sequence[tuple[float, str]],
    x_title: str,
    x_ticks: Sequence[tuple[float, str]],
    *,
    slant: bool = False,
) -> str:
    """An area with its axes around it; ticks are shares of the area and their words."""
    ys = "".join(f'<span style="bottom:{_percent(at)}">{text(words)}</span>' for at, words in y_ticks)
    xs = "".join(f'<span style="left:{_percent(at)}">{text(words)}</span>' for at, words in x_ticks)
    return (
        f'<figure class="axes"><figcaption>{text(y_title)}</figcaption>'
        f'<div class="frame"><div class="ys" aria-hidden="true">{ys}</div><div class="area">{area}</div></div>'
        f'<div class="xs{" slant" if slant else ""}" aria-hidden="true">{xs}</div>'
        f'<p class="x-title">{text(x_title)}</p></figure>'
    )


def stop_words(words: Sequence[str]) -> str:
    """Attributes of a stop: spoken as one sentence, shown line by line."""
    spoken, shown = text("; ".join(words)), text("\n".join(words))
    return f'class="stop" tabindex="0" role="img" aria-label="{spoken}" data-words="{shown}"'


def grid_line(at: float) -> str:
    height = round((1 - at) * svg.BOX_HEIGHT)
    return f'<path class="grid" d="M0 {height}H{svg.BOX_WIDTH}"/>'


def _percent(share: float) -> str:
    return f"{share * 100:.2f}%"


def _grid(scale: _Scales) -> str:
    return "".join(grid_line(at) for at, _ in scale.y_ticks)


def _line(line: Line, scale: _Scales) -> str:
    look = line.look if line.look in LOOKS else "main"
    x = np.array([scale.x(value) for value in line.x])
    y = _inside([scale.y(value) for value in line.y])
    drawn = ""
    if len(line.low) == len(line.x) > 1:
        low, high = (_inside([scale.y(value) for value in edge]) for edge in (line.low, line.high))
        drawn += f'<path class="range {look}" d="{svg.band(x, low, high)}"/>'
    elif len(line.low) == len(line.x) == 1:
        drawn += _whisker(look, float(x[0]), scale.y(line.low[0]), scale.y(line.high[0]))
    if line.has_line and len(x) > 1:
        drawn += f'<path class="curve {look}" d="{svg.line(x, y)}"/>'
    if line.has_dots:
        # a line of no length with round ends is a dot that does not stretch with its box
        places = zip(np.rint(x * svg.BOX_WIDTH).astype(int), np.rint((1 - y) * svg.BOX_HEIGHT).astype(int), strict=True)
        drawn += f'<path class="dot {look}" d="{"".join(f"M{a} {b}h0" for a, b in places)}"/>'
    return drawn


def _inside(shares: Sequence[float]) -> Floats:
    return np.clip(np.array(shares, dtype=np.float64), -0.02, 1.02)


def _whisker(look: str, x: float, low: float, high: float) -> str:
    bottom, top = (round((1 - edge) * svg.BOX_HEIGHT) for edge in (low, high))
    return f'<path class="curve {look}" d="M{round(x * svg.BOX_WIDTH)} {bottom}V{top}"/>'


def _shade(chart: Chart) -> str:
    if chart.beyond is None:
        return ""
    left = round(max(0.0, chart.scale.x(chart.beyond[0])) * svg.BOX_WIDTH)
    return f'<path class="beyond" d="M{left} 0H{svg.BOX_WIDTH}V{svg.BOX_HEIGHT}H{left}z"/>'


def _beyond_words(chart: Chart) -> str:
    if chart.beyond is None:
        return ""
    return f'<span class="beyond-words">{text(chart.beyond[1])}</span>'


def _marks(chart: Chart) -> str:
    made = []
    for number, (place, name) in enumerate(sorted(chart.marks)):
        at = chart.scale.x(place)
        side = "before" if at > 0.6 else "after"
        made.append(f'<span class="{side}" style="left:{_percent(at)};--row:{number}"><i>{text(name)}</i></span>')
    return f'<div class="marks named">{"".join(made)}</div>' if made else ""


def _stop(stop: Stop, scale: _Scales) -> str:
    place = f"left:{_percent(scale.x(stop.x))}"
    if stop.y is not None:
        place += f";bottom:{_percent(scale.y(stop.y))}"
    kind = "column" if stop.y is None else "spot"
    return f'<span {stop_words(stop.words)} data-kind="{kind}" style="{place}"></span>'


def _legend(lines: Sequence[Line]) -> str:
    seen: dict[str, str] = {}
    for line in lines:
        seen.setdefault(line.name, line.look if line.look in LOOKS else "main")
    if len(seen) < 2:
        return ""
    items = "".join(f'<li><i class="key {look}"></i>{text(name)}</li>' for name, look in seen.items())
    return f'<ul class="legend">{items}</ul>'
