"""Where the time goes: the mean over ranks, rank by rank, and the way down from the ideal rate to the measured one."""

from topout.report import figures, svg
from topout.report.escape import text
from topout.report.sections.frame import obtained, section
from topout.report.sections.phases import MEANING, colour_class, in_order
from topout.schema.measures import Measures, RankTime

MOST_ROWS = 10
"""Above this many ranks, a row each would fill a screen: they become columns."""
MOST_COLUMNS = 512


def where_time_goes(measures: Measures) -> str:
    shares = in_order(measures.shares)
    if not shares:
        return ""
    spoken = text("; ".join(f"{phase} {figures.share(share)}" for phase, share in shares))
    bar = svg.bar(svg.stacked((colour_class(phase), share) for phase, share in shares), height=44, label=spoken)
    # not the mean step, which ends with the last optimizer step: shares are of the whole window
    window = measures.window
    step_ns = window.elapsed_ns / window.num_steps if window else None
    rows = "".join(
        f'<tr><th scope="row"><i class="{colour_class(phase)}"></i>{phase}</th>'
        f'<td class="number">{figures.share(share)}</td>'
        f'<td class="number">{figures.duration(None if step_ns is None else share * step_ns)}</td>'
        f"<td>{_meaning(phase, measures)}</td></tr>"
        for phase, share in shares
    )
    table = (
        '<table class="shares"><thead><tr><th scope="col">phase</th><th scope="col" class="number">share</th>'
        f'<th scope="col" class="number">per step</th><th scope="col"></th></tr></thead><tbody>{rows}</tbody></table>'
    )
    note = f"Mean over ranks, {_window(measures)}. {obtained('measured')}"
    return section("time", "Where the time goes", note, bar + table + _by_rank(measures.ranks))


def _meaning(phase: str, measures: Measures) -> str:
    """On devices, and in compiled steps, exposed communication is part of backward."""
    is_on_devices = measures.device is not None and len(measures.ranks) > 1
    if phase == "backward" and (measures.communication.is_hidden or is_on_devices):
        return "the backward pass, with communication that it does not hide"
    return MEANING[phase]


def waterfall(measures: Measures) -> str:
    """Each row starts where the one above it ended, so that the eye walks down the lost rate."""
    if not measures.waterfall:
        return ""
    measured = measures.waterfall[-1].remaining_share
    rate = measures.step.samples_per_s if measures.step else None
    ideal_rate = rate / measured if rate is not None and measured > 0 else None
    rows = [_fall("Ideal: compute only", "whole", 0.0, 1.0, _rate(ideal_rate) or "100\u202f%", is_end=True)]
    for item in (item for item in measures.waterfall if item.share > 0):
        name = colour_class(item.name)
        rows.append(_fall(item.name, name, item.remaining_share, item.share, f"−{figures.share(item.share)}"))
    ending = _rate(rate) or figures.share(measured)
    rows.append(_fall("Measured", "whole", 0.0, measured, ending, is_end=True))
    note = (
        "The rate this job would reach if each of these took no time, and what each takes off it. "
        f"The ideal is {obtained('predicted')}, the losses are {obtained('measured')}"
    )
    return section("waterfall", "From ideal to measured", note, f'<div class="waterfall">{"".join(rows)}</div>')


def _fall(name: str, colour: str, start: float, length: float, value: str, *, is_end: bool = False) -> str:
    bar = svg.bar([(colour, max(start, 0.0), length)], height=18)
    weight = ' class="end"' if is_end else ""
    return f"<div{weight}><span>{text(name)}</span>{bar}<span>{value}</span></div>"


def _rate(samples_per_s: float | None) -> str:
    return "" if samples_per_s is None else f"{figures.amount(samples_per_s)} samples/s"


def _window(measures: Measures) -> str:
    window = measures.window
    if window is None:
        return "over the recorded steps"
    text_ = f"steps {window.first_step:,} to {window.last_step:,} ({figures.duration(window.elapsed_ns)})"
    return text_ + (f", warm-up left out ({window.num_warmup_steps})" if window.num_warmup_steps else "")


def _by_rank(ranks: tuple[RankTime, ...]) -> str:
    if len(ranks) < 2:
        return ""
    if len(ranks) <= MOST_ROWS:
        rows = "".join(
            f'<div><span>rank {item.rank}<small title="{text(item.host)}">{text(item.host)}</small></span>'
            f"{_bar_of(item)}<span>{figures.duration(item.busy_step_ns)}</span></div>"
            for item in ranks
        )
        caption = "Each rank; on the right its busy time per step, before it waits for others or for the wire."
        return f'<h3>Rank by rank</h3><div class="ranks">{rows}</div><p class="caption">{caption}</p>'
    shown = ranks[:: -(-len(ranks) // MOST_COLUMNS)]
    stacks = [[(colour_class(phase), share) for phase, share in in_order(item.shares)] for item in shown]
    caption = f"One column a rank, {shown[0].rank} on the left to {shown[-1].rank} on the right"
    caption += f"; {len(shown)} of {len(ranks):,} shown." if len(shown) < len(ranks) else "."
    return (
        f'<h3>Rank by rank</h3><div class="columns">{svg.columns(stacks)}</div>'
        f'<p class="caption">{caption} {_extremes(ranks)}</p>'
    )


def _bar_of(item: RankTime) -> str:
    shares = in_order(item.shares)
    spoken = text(f"rank {item.rank}: " + "; ".join(f"{phase} {figures.share(share)}" for phase, share in shares))
    return svg.bar(svg.stacked((colour_class(phase), share) for phase, share in shares), height=20, label=spoken)


def _extremes(ranks: tuple[RankTime, ...]) -> str:
    by_busy = sorted(ranks, key=lambda item: item.busy_step_ns)
    low, high = by_busy[0], by_busy[-1]
    return (
        f"Busy time per step runs from {figures.duration(low.busy_step_ns)} (rank {low.rank} on {text(low.host)}) "
        f"to {figures.duration(high.busy_step_ns)} (rank {high.rank} on {text(high.host)})."
    )
