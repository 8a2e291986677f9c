"""The gradient noise scale as the run went on: a line with its interval, on a scale of factors.

Not advice by itself: it was 3 to 5 times below the measured critical batch where we checked, and the caption says so.
"""

import math

import numpy as np

from topout.report import figures, svg
from topout.report.escape import text
from topout.report.noise_sentence import CAUTION, noise_sentence
from topout.report.sections.frame import obtained, section
from topout.report.svg import Floats
from topout.schema.measures import Measures, NoiseScale


def noise_scale(measures: Measures) -> str:
    found = measures.noise_scale
    if found is None:
        return ""
    note = (
        "How many samples a gradient needs before noise and signal are equal: tr(Σ)/|G|², over a window of sampled "
        f"steps. {obtained('measured')}"
    )
    return section("noise-scale", "Gradient noise scale", note, _figure(found) + _caption(found))


def _caption(found: NoiseScale) -> str:
    return f'<p class="caption">At the end {text(noise_sentence(found))}. {CAUTION}</p>'


def _figure(found: NoiseScale) -> str:
    known = [index for index, value in enumerate(found.values) if value]
    if len(known) < 2:
        return ""
    steps = np.array([found.steps[index] for index in known], dtype=np.float64)
    values = np.array([found.values[index] for index in known], dtype=np.float64)
    floor = float(values.min()) / 10  # an interval may reach down to nothing, which a scale of factors cannot show
    lows = np.array([max(found.lows[index] or 0.0, floor) for index in known])
    top = float(values.max()) * 10
    highs = np.array([min(found.highs[index] or top, top) for index in known])
    bottom, ceiling = 10 ** math.floor(math.log10(lows.min())), 10 ** math.ceil(math.log10(highs.max()))
    x = (steps - steps[0]) / max(float(steps[-1] - steps[0]), 1.0)
    low, high, middle = (_level(column, bottom, ceiling) for column in (lows, highs, values))
    first, last = f"{steps[0]:,.0f}", f"{steps[-1]:,.0f}"
    drawn = f'<path class="band" d="{svg.band(x, low, high)}"/><path class="line" d="{svg.line(x, middle)}"/>'
    plot = svg.box(drawn, attributes=f'role="img" aria-label="Noise scale over steps {first} to {last}"')
    return (
        f'<div class="chart series"><div class="area">{plot}<span class="top">{figures.amount(ceiling)}</span></div>'
        f'<div class="axis"><span>step {first}</span><span>lower edge {figures.amount(bottom)}</span>'
        f"<span>step {last}</span></div></div>"
    )


def _level(values: Floats, bottom: float, ceiling: float) -> Floats:
    height: Floats = np.log(values / bottom) / max(math.log(ceiling / bottom), 1e-9)
    return np.clip(height, 0.0, 1.0)
