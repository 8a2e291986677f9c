"""The timeline's data: every rank's every step, packed small enough to travel inside the page.

Starts are unsigned 32-bit numbers of a unit that makes the whole window fit; the phases of a step are shares of its
duration, 16 bits each in a usual run and 8 bits in a large one. Above `MOST_CELLS` steps are merged, above `MOST_RANKS`
ranks are left out, and the page says so.
"""

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from topout.report import figures
from topout.report.escape import json_block
from topout.report.sections.frame import obtained, section
from topout.report.sections.phases import legend
from topout.schema.counted import counted
from topout.schema.measures import PHASES, Verdict

if TYPE_CHECKING:
    from topout.analyze.series import Series

MOST_CELLS = 80_000
"""Ranks x steps that the page holds one by one; about 1 MB of page, drawn in one frame."""
FINE_CELLS = 16_000
"""Up to here a share gets 16 bits, so that a tooltip is exact to a microsecond in a step of 60 ms."""
MOST_RANKS = 256

MOST_STACKED = 24


@dataclass(frozen=True, kw_only=True)
class Packed:
    """What `page/timeline.js` reads, and what had to be left out for it."""

    data: dict[str, Any]
    phases: list[str]
    merged_steps: int
    num_ranks_shown: int


def timeline(series: "Series", verdict: Verdict | None) -> str:
    """The canvas, its buttons and its data; ranks that the verdict names are shown even when others are left out."""
    if series.duration_ns.size == 0:
        return ""
    packed = pack(series, verdict.ranks if verdict else ())
    # rows of many ranks are too low to stack colours in them: begin with the phase that matters
    is_alone = verdict is not None and verdict.phase in packed.phases and packed.num_ranks_shown > MOST_STACKED
    packed.data["alone"] = verdict.phase if verdict is not None and is_alone else None
    content = (
        '<div class="timeline" id="timeline-figure"><div class="controls" role="group" aria-label="Timeline">'
        '<button type="button" data-do="in" aria-label="Zoom in">+</button>'
        '<button type="button" data-do="out" aria-label="Zoom out">−</button>'
        '<button type="button" data-do="left" aria-label="Earlier">←</button>'
        '<button type="button" data-do="right" aria-label="Later">→</button>'
        '<button type="button" data-do="all">Whole run</button>'
        '<output id="timeline-view" aria-live="polite"></output></div>'
        '<canvas id="timeline-canvas" tabindex="0" role="img" aria-label="Phases of every step, one row a rank. '
        'Plus and minus zoom, arrows move, 0 shows the whole run."></canvas>'
        "<noscript><p>The timeline needs JavaScript; all else on this page does without.</p></noscript></div>"
        f'{legend(packed.phases, "timeline-legend")}<p class="caption">{_limits(series, packed)}</p>'
        f'<script type="application/json" id="timeline-data">{json_block(packed.data)}</script>'
    )
    note = (
        "Drag across a stretch to zoom into it; shift and drag, or the arrow keys, move. The wheel zooms once the "
        "timeline is clicked. Zoomed out, the height of a colour in a row is its share of the time; zoomed in, each "
        "step shows its phases end to end, in one fixed order. Choose a phase in the legend to see it alone, the "
        f"stronger the more of the time it takes. {obtained('measured')}"
    )
    return section("timeline", "Timeline", note, content, wide=True)


def pack(series: "Series", keep_ranks: tuple[int, ...] = ()) -> Packed:
    rows = _rows_shown(list(series.ranks), keep_ranks)
    start_ns, duration_ns = series.start_ns[rows], series.duration_ns[rows]
    group = -(-duration_ns.size // MOST_CELLS)
    firsts = np.arange(0, duration_ns.shape[1], group)
    phase_ns = np.add.reduceat(series.phase_ns[rows], firsts, axis=1)
    merged_ns = np.maximum(np.add.reduceat(duration_ns, firsts, axis=1), 1)
    used = [index for index in range(phase_ns.shape[2]) if phase_ns[:, :, index].any()]
    bits = 16 if merged_ns.size <= FINE_CELLS else 8
    top = 2**bits - 1
    shares = np.clip(np.rint(phase_ns[:, :, used] / merged_ns[:, :, None] * top), 0, top).astype(f"<u{bits // 8}")
    origin_ns = int(start_ns.min())
    span_ns = int((start_ns + duration_ns).max()) - origin_ns
    unit_ns = max(1, -(-span_ns // (2**32 - 1)))
    # the end of the last step closes each row; in between, a step ends where the next begins
    edges_ns = (
        np.concatenate([start_ns[:, firsts], (start_ns[:, -1] + duration_ns[:, -1])[:, None]], axis=1) - origin_ns
    )
    phases = [PHASES[index] for index in used]
    data: dict[str, Any] = {
        "ranks": [int(series.ranks[row]) for row in rows],
        "hosts": [str(series.hosts[row]) for row in rows],
        "phases": phases,
        "steps": [int(step) for step in series.steps[firsts]],
        "last": int(series.steps[-1]),
        "unit": unit_ns,
        "bits": bits,
        "edges": _base64(np.rint(edges_ns / unit_ns).astype("<u4")),
        "shares": _base64(shares),
    }
    return Packed(data=data, phases=phases, merged_steps=group, num_ranks_shown=len(rows))


def _rows_shown(ranks: list[int], keep_ranks: tuple[int, ...]) -> list[int]:
    if len(ranks) <= MOST_RANKS:
        return list(range(len(ranks)))
    kept = [ranks.index(rank) for rank in keep_ranks[:16] if rank in ranks]
    spread = np.linspace(0, len(ranks) - 1, MOST_RANKS - len(kept)).astype(int).tolist()
    return sorted({*kept, *spread})


def _limits(series: "Series", packed: Packed) -> str:
    num_ranks, num_steps = series.duration_ns.shape
    parts = [f"{counted(num_ranks, 'rank')} × {num_steps:,} steps."]
    if packed.num_ranks_shown < num_ranks:
        parts.append(f"{packed.num_ranks_shown} ranks are shown, evenly chosen, with those the verdict names.")
    if packed.merged_steps > 1:
        parts.append(
            f"Above {figures.amount(MOST_CELLS)} cells steps are merged to keep this page small: "
            f"here {packed.merged_steps} steps a cell."
        )
    if packed.data["bits"] == 8:
        parts.append("Phases in a tooltip are rounded to 0.4 % of their step.")
    return " ".join(parts)


def _base64(array: npt.NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")
