"""A scaling study as text: the points, where the time of a step goes, what bends the curve, and what laws say."""

from topout.report import figures
from topout.schema.counted import counted
from topout.study.law_ranges import LawRange
from topout.study.scaling import Scaling, ScalingPoint


def scale_text(found: Scaling, ranges: dict[str, list[LawRange]]) -> str:
    """`ranges`: what each law says of more ranks than were run. Lines are as long as they are: numbers are not cut."""
    lines = [f"{found.mode} scaling\n", *_points(found), "", *_phases(found), ""]
    otherwise = "not known: communication was not seen" if found.is_bend_unseen else "nothing: it scales"
    lines.append(f"What bends it   {found.bends or otherwise}")
    lines.append(f"Knee            {found.knee if found.knee else 'not reached'}")
    if ranges:
        lines += ["", *_laws(found, ranges)]
    return "\n".join(lines)


def _points(found: Scaling) -> list[str]:
    has_memory = any(point.peak_bytes for point in found.points)
    head = (
        f"{'ranks':>6} {'batch':>6} {'samples/s':>11} {'80 % interval':>21} {'speed-up':>9} {'eff.':>5} {'step ms':>9} "
        f"{'parallel':>8} {'balance':>8} {'comm.':>6}"
    )
    lines = [head + (f" {_memory_title(found.points):>9}" if has_memory else "")]
    for point in found.points:
        line = (
            f"{point.ranks:>6} {point.batch or '–':>6} {point.samples_per_s:>11,.1f} "
            f"{f'{point.low:,.1f} to {point.high:,.1f}':>21} {point.speedup:>9.2f} {point.efficiency:>5.2f} "
            f"{point.step_s * 1e3:>9,.1f} {_factor(point.parallel_efficiency):>8} {_factor(point.load_balance):>8} "
            f"{_factor(point.communication_efficiency):>6}"
        )
        lines.append(line + (f" {figures.size(point.peak_bytes):>9}" if has_memory else ""))
    return lines


def _memory_title(points: list[ScalingPoint]) -> str:
    return "device" if all(point.is_device_memory for point in points) else "memory"


def _phases(found: Scaling) -> list[str]:
    names = [name for name in found.points[-1].phases_s if any(name in point.phases_s for point in found.points)]
    lines = ["ms of a step, mean over ranks", f"{'ranks':>6} " + " ".join(f"{name:>10}" for name in names)]
    return lines + [
        f"{point.ranks:>6} " + " ".join(f"{point.phases_s.get(name, 0.0) * 1e3:>10,.2f}" for name in names)
        for point in found.points
    ]


def _laws(found: Scaling, ranges: dict[str, list[LawRange]]) -> list[str]:
    counts = [entry.ranks for entry in next(iter(ranges.values()))]
    titles = " ".join(f"{counted(count, 'rank'):>28}" for count in counts)
    lines = [f"{'samples/s by law':<20} {'numbers':>7} {'off by':>7} {titles}"]
    for name, entries in ranges.items():
        said = " ".join(f"{f'{e.value:,.0f} ({e.low:,.0f} to {e.high:,.0f})':>28}" for e in entries)
        lines.append(f"{name:<20} {found.parameters[name]:>7} {found.errors[name]:>7.1%} {said}")
    return lines


def _factor(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
