"""Waterfalls and trainings with failures of `topout simulate`, as text."""

from collections.abc import Mapping, Sequence

from topout.schema.counted import counted
from topout.study.failures import Ageing
from topout.study.waterfall import Bar, rounded


def more_text(falls: Mapping[int, Sequence[Bar]], ages: Sequence[Ageing]) -> str:
    """Each set off by an empty line; nothing where nothing was asked for."""
    blocks = [waterfall_text(nodes, bars) for nodes, bars in falls.items()] + ([ages_text(ages)] if ages else [])
    return "".join(f"\n{block}\n" for block in blocks)


def waterfall_text(nodes: int, bars: Sequence[Bar]) -> str:
    """Parts that round to nothing are left out; those shown add up as they are printed."""
    total_s = sum(bar.seconds for bar in bars)
    milliseconds = rounded([bar.seconds * 1e3 for bar in bars], 1)
    shares = rounded([bar.share * 100 for bar in bars], 1)
    head = f"{counted(nodes, 'node')}"
    lines = [f"{head:<26} {'ms':>9} {'%':>8} {'samples/s so far':>17}"]
    for bar, spent, share in zip(bars, milliseconds, shares, strict=True):
        if spent or share:
            lines.append(f"  {bar.name:<24} {spent:>9,.1f} {share:>8.1f} {bar.samples_per_s:>17,.0f}")
    lines.append(f"  {'predicted':<24} {round(total_s * 1e3, 1):>9,.1f} {100:>8.1f} {bars[-1].samples_per_s:>17,.0f}")
    return "\n".join(lines)


def ages_text(found: Sequence[Ageing]) -> str:
    lines = [
        f"A training of {_span(found[0].undisturbed_hours * 3600)} without failures, with them:",
        f"{'nodes':>6} {'median':>9} {'80 of 100':>20} {'mean':>9} {'failures':>9} {'saved every':>12} "
        f"{'best':>9} {'then':>9}",
    ]
    for one in found:
        reach = f"{_span(one.low_hours * 3600)} to {_span(one.high_hours * 3600)}"
        best = "–" if one.best_interval_s is None else _span(one.best_interval_s)
        then = "–" if one.best_hours is None else _span(one.best_hours * 3600)
        lines.append(
            f"{one.nodes:>6,} {_span(one.hours * 3600):>9} {reach:>20} {_span(one.expected_hours * 3600):>9} "
            f"{one.failures:>9,.1f} {_span(one.interval_s):>12} {best:>9} {then:>9}"
        )
    return "\n".join(lines)


def _span(seconds: float) -> str:
    for size, unit in ((2 * 86400, "d"), (2 * 3600, "h"), (120, "min")):
        if seconds >= size:
            return f"{seconds / {'d': 86400, 'h': 3600, 'min': 60}[unit]:,.1f} {unit}"
    return f"{seconds:,.0f} s" if seconds >= 10 else f"{seconds:.2g} s"
