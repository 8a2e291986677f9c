"""How long steps take: their distribution, and how it changes as the run goes on."""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from topout.report import figures, svg
from topout.report.sections.frame import obtained, section
from topout.report.svg import Floats

if TYPE_CHECKING:
    from topout.analyze.series import Series

NUM_BINS = 48
TAIL_FROM = 5
"""Steps this many times further from the median than the 95th percentile share the last bin: a checkpoint must
not flatten all the rest into one bar."""
MOST_POINTS = 1200


def steps(series: "Series") -> str:
    if series.duration_ns.shape[1] < 2:
        return ""
    note = (
        "Above: all steps of all ranks, by how long they took. Below: each step as the run went on, slowest rank as a "
        f"line, the spread over ranks as a band. {obtained('measured')}"
    )
    duration_ns = series.duration_ns.astype(np.float64)
    # what follows the last optimizer step (a last evaluation) is no part of a step's time
    duration_ns[:, -1] -= series.tail_ns
    return section("steps", "Step times", note, _histogram(duration_ns.ravel()) + _over_time(series.steps, duration_ns))


def _histogram(ns: Floats) -> str:
    median_ns, p95_ns = float(np.median(ns)), float(np.percentile(ns, 95))
    low_ns, high_ns = float(ns.min()), min(float(ns.max()), median_ns + TAIL_FROM * (p95_ns - median_ns))
    high_ns = max(high_ns, low_ns * 1.02, low_ns + 1)
    counts, _ = np.histogram(np.minimum(ns, high_ns), bins=NUM_BINS, range=(low_ns, high_ns))
    tallest = int(counts.max())
    bars = "".join(_column(index, int(count) / tallest) for index, count in enumerate(counts) if count)
    marks = _mark("median", median_ns, low_ns, high_ns, "before") + _mark("95 %", p95_ns, low_ns, high_ns, "after")
    shortest, longest, median = (figures.duration(value) for value in (low_ns, float(ns.max()), median_ns))
    beyond = int((ns > high_ns).sum())
    tail = ""
    if beyond:
        tail = f"The last bar holds {beyond:,} longer ones, up to {longest}."
    spoken = f"Step times from {shortest} to {longest}, median {median}"
    plot = svg.box(bars, attributes=f'role="img" aria-label="{spoken}"')
    return (
        f'<div class="chart histogram"><div class="area">{plot}<div class="marks">{marks}</div></div>'
        f'<div class="axis"><span>{shortest}</span><span>{figures.duration(high_ns)}</span></div>'
        f'</div><p class="caption">{ns.size:,} steps over all ranks. {tail}</p>'
    )


def _mark(name: str, value_ns: float, low_ns: float, high_ns: float, side: str) -> str:
    """A line at a value; its label stands on the side away from the other mark unless the edge is near."""
    place = (min(value_ns, high_ns) - low_ns) / (high_ns - low_ns)
    if place < 0.3:
        side = "after"
    elif place > 0.7:
        side = "before"
    lower = " lower" if name != "median" else ""
    return f'<span class="{side}{lower}" style="left:{place * 100:.2f}%">{name} {figures.duration(value_ns)}</span>'


def _column(index: int, height: float) -> str:
    left, right = (round(svg.BOX_WIDTH * (index + edge) / NUM_BINS) for edge in (0.06, 0.94))
    # a bin with a single step among thousands must stay visible
    tall = max(round(svg.BOX_HEIGHT * 0.92 * height), 4)
    return f'<path class="fill" d="M{left} {svg.BOX_HEIGHT}v-{tall}H{right}v{tall}z"/>'


def _over_time(numbers: npt.NDArray[np.int64], duration_ns: Floats) -> str:
    slowest, fastest = duration_ns.max(axis=0), duration_ns.min(axis=0)
    number = numbers.astype(np.float64)
    top_ns = float(np.percentile(slowest, 99.5)) * 1.1
    is_cut = float(slowest.max()) > top_ns * 1.3
    if not is_cut:
        top_ns = float(slowest.max())
    first, last = float(number[0]), float(number[-1])
    where = (number - first) / max(last - first, 1.0)
    x, high = svg.thin(where, np.minimum(slowest / top_ns, 1.0), MOST_POINTS)
    low = np.interp(x, where, fastest / top_ns)
    spread = f'<path class="band" d="{svg.band(x, np.minimum(low, high), high)}"/>' if len(duration_ns) > 1 else ""
    attributes = (
        f'data-chart="step" data-x0="{first:.0f}" data-x1="{last:.0f}" data-y1="{top_ns:.0f}" data-unit="ns" '
        f'role="img" aria-label="Step time over steps {first:.0f} to {last:.0f}"'
    )
    plot = svg.box(f'{spread}<path class="line" d="{svg.line(x, high)}"/>', attributes=attributes)
    cut = f" Steps longer than {figures.duration(top_ns)} touch the upper edge." if is_cut else ""
    thinned = " Thinned to the longest and shortest of each stretch." if len(x) < len(where) else ""
    return (
        f'<div class="chart series"><div class="area">{plot}<span class="top">{figures.duration(top_ns)}</span></div>'
        f'<div class="axis"><span>step {first:,.0f}</span><span>step {last:,.0f}</span></div></div>'
        f'<p class="caption">Time of each step.{cut}{thinned}</p>'
    )
