"""A scaling study as a page: what bends the curve, the curve, its factors, and where the time of a step goes."""

from collections.abc import Callable, Sequence
from math import hypot

from topout.report import figures
from topout.report.axes import Axis, Chart, Line, Stop
from topout.report.stacks import Column, Stacks
from topout.report.study_page import Answer, Content, Section, StudyPage, Table
from topout.schema.counted import counted
from topout.schema.measures import PHASES, SERIAL_PHASES
from topout.study.law_ranges import LawRange
from topout.study.scaling import Scaling, ScalingPoint

_MUCH = 0.15
"""Of a step: a serial part above it is named in the answer."""
_BENDS = {
    "load balance": (
        "Uneven ranks bend the curve: ",
        "`topout analyze RUN` of a run with the most ranks names the rank that is late, and the phase in which it is.",
    ),
    "communication efficiency": (
        "Communication bends the curve: ",
        "Groups of gradients and overlap are in docs/step.md, compression in docs/compression.md; a larger batch of a "
        "rank makes it rarer.",
    ),
    "input": (
        "Input bends the curve: ",
        "Ranks wait longer for their batches than they should: `topout analyze RUN` of a run with the most ranks says "
        "whether files, bandwidth or decoding hold them up, and docs/feed.md what helps.",
    ),
    "evaluation and saving": (
        "A serial part bends the curve: ",
        "Evaluation and saving do not shrink with more ranks (docs/evaluate.md, docs/checkpoints.md).",
    ),
    "computation": (
        "Computing itself becomes slower: ",
        "Ranks share cores or memory bandwidth, or the batch of a rank becomes too small to fill its device: see the "
        "threads in the notes, and `topout run --bind`.",
    ),
}


Ranges = dict[str, list[LawRange]]
"""What each law says of more ranks than were run."""


def scale_page(studies: Sequence[Scaling], ranges: Sequence[Ranges], title: str, origin: str) -> StudyPage:
    """One page, whether strong and weak were studied or one of them."""
    is_many = len(studies) > 1
    counts = sorted({point.ranks for found in studies for point in found.points})
    # strong and weak share the point of the fewest ranks and of the same batch
    runs = sum({(point.ranks, point.batch): point.num_runs for found in studies for point in found.points}.values())
    return StudyPage(
        kind="scaling study",
        title=title,
        facts=[
            f"{' and '.join(found.mode for found in studies)} scaling",
            f"{', '.join(map(str, counts))} ranks",
            f"{runs} runs",
        ],
        answers=[_answer(found, is_many=is_many) for found in studies],
        sections=[
            part
            for found, fitted in zip(studies, ranges, strict=True)
            for part in _sections(found, fitted, is_many=is_many)
        ],
        notes=list(dict.fromkeys(note for found in studies for note in found.notes)),
        origin=origin,
    )


def _answer(found: Scaling, *, is_many: bool) -> Answer:
    first, last = found.points[0], found.points[-1]
    otherwise = "What bends the curve was not seen: " if found.is_bend_unseen else "It scales: "
    lead, advice = _BENDS.get(found.bends or "", (otherwise if found.bends is None else f"{found.bends}: ", ""))
    rest = f"efficiency {last.efficiency:.2f} at {last.ranks} ranks against {first.ranks}."
    shares = f"; {first.ranks} ranks count as {first.ranks}" if first.ranks > 1 else ""
    serial = _serial(found)
    if serial and found.bends == "evaluation and saving":
        advice = ""
    evidence = [line for line in (serial, advice) if line]
    if found.knee is not None:
        evidence.append(
            f"Beyond {counted(found.knee, 'rank')} doubling brought less than half of what it should: more of them are "
            "paid for and not used."
        )
    return Answer(
        lead=(f"{found.mode.capitalize()} scaling. " if is_many else "") + lead,
        rest=rest,
        evidence=evidence,
        figures=[
            ("Samples per second", f"{last.samples_per_s:,.1f}", f"{_between(last)} at {last.ranks} ranks"),
            ("Speed-up", f"{last.speedup:.2f}", f"of {last.ranks} that are possible{shares}"),
            ("Knee", str(found.knee) if found.knee else "not reached", "the most ranks whose last doubling paid"),
        ],
    )


def _serial(found: Scaling) -> str:
    """A part that more ranks do not shrink, where it is a large one."""
    first, last = found.points[0], found.points[-1]
    late, early = (sum(point.phases_s.get(name, 0.0) for name in SERIAL_PHASES) for point in (last, first))
    if late < _MUCH * last.step_s or (found.mode == "strong" and late < 0.6 * early):
        return ""
    return (
        f"Evaluation and saving take {late * 1e3:,.2f} of {last.step_s * 1e3:,.1f} ms of a step at {last.ranks} ranks, "
        f"{early * 1e3:,.2f} at {first.ranks}: a serial part, which bounds what any number of ranks can reach "
        "(docs/evaluate.md, docs/checkpoints.md)."
    )


def _sections(found: Scaling, fitted: Ranges, *, is_many: bool) -> list[Section]:
    before = f"{found.mode.capitalize()}: " if is_many else ""

    def part(key: str, title: str, note: str, content: Sequence[Content], how: str = "measured") -> Section:
        titled = f"{before}{title.lower()}" if before else title
        return Section(key=f"{found.mode}-{key}", title=titled, note=note, how=how, content=content)

    parts = [
        part("throughput", "Throughput",
             "Samples a second of all ranks, both axes doubling; the band is the 80 % interval over runs. Dashed: "
             "laws fitted to these points, with the range that the points leave them.",
             [_throughput(found, fitted), _points_table(found)]),
        part("efficiency", "Efficiency",
             "Throughput of a rank against that at the fewest; the band is the 80 % interval over the runs of both.",
             [_efficiency(found)]),
    ]  # fmt: skip
    factors = _factors(found)
    if factors:
        parts.append(part("factors", "What bends it", "POP factors of each point's own runs: the one that falls bends "
                          "the curve. Computation is what they leave unexplained; input, evaluation and saving are "
                          "part of it, and the answer on top names the one that grew most.",
                          factors))  # fmt: skip
    parts.append(part("phases", "Time of a step", "Where the time of a step goes, mean over ranks. A part that stays "
                      "as tall while the others shrink is serial, and bounds the rest.", _phases(found)))  # fmt: skip
    if any(point.peak_bytes for point in found.points):
        parts.append(part("memory", "Memory", _memory_note(found), [_memory(found)]))
    if fitted:
        parts.append(part("laws", "Beyond what was run", "What the laws say of more ranks. Far apart means that the "
                          "points cannot tell; `topout calibrate` and `simulate` know the machine.",
                          [_laws_table(found, fitted)], "predicted"))  # fmt: skip
    return parts


def ranks_axis(counts: Sequence[float], title: str) -> Axis:
    return Axis(title=title, show=lambda value: f"{value:,.0f}", is_log=True, ticks=tuple(counts))


def _throughput(found: Scaling, fitted: Ranges) -> Chart:
    points = found.points
    x = [point.ranks for point in points]
    counts = sorted({*x, *(entry.ranks for law in fitted.values() for entry in law)})
    one = points[0].samples_per_s / points[0].ranks
    lines = [Line(name="ideal", x=counts, y=[one * count for count in counts], look="ideal")]
    lines += [
        Line(
            name=name, look=f"law-{number % 5}",
            x=[entry.ranks for entry in law], y=[entry.value for entry in law],
            low=[entry.low for entry in law], high=[entry.high for entry in law],
        )
        for number, (name, law) in enumerate(_from_the_last_point(found, fitted).items())
    ]  # fmt: skip
    lines.append(
        Line(
            name="measured", x=x, y=[point.samples_per_s for point in points], has_dots=True,
            low=[max(point.low, 1e-9) for point in points], high=[point.high for point in points],
        )
    )  # fmt: skip
    by_ranks = {point.ranks: point for point in points}
    return Chart(
        spoken="Samples a second over ranks: "
        + "; ".join(f"{counted(point.ranks, 'rank')} {point.samples_per_s:,.1f}" for point in points),
        x=ranks_axis(counts, "ranks"),
        y=Axis(title="samples/s", show=figures.amount, is_log=True),
        lines=lines,
        stops=[Stop(x=count, words=_stop_words(count, by_ranks.get(count), one, fitted)) for count in counts],
        marks=[(found.knee, "knee")] if found.knee else [],
        beyond=(max(x) * 1.05, "not run") if max(counts) > max(x) else None,
    )


def _from_the_last_point(found: Scaling, fitted: Ranges) -> Ranges:
    """Forecasts begin where the measured curve ends; within it laws are no forecast."""
    last = found.points[-1]
    start = LawRange(ranks=last.ranks, value=last.samples_per_s, low=max(last.low, 1e-9), high=last.high)
    return {name: [start, *(entry for entry in law if entry.ranks > last.ranks)] for name, law in fitted.items()}


def _stop_words(count: int, point: ScalingPoint | None, one: float, fitted: Ranges) -> list[str]:
    words = [counted(count, "rank")]
    if point is not None:
        words.append(f"measured {point.samples_per_s:,.1f} samples/s, {_between(point)}")
    words.append(f"ideal {one * count:,.1f}")
    words += [
        f"{name} {entry.value:,.0f}, {entry.low:,.0f} to {entry.high:,.0f}"
        for name, law in fitted.items()
        for entry in law
        if entry.ranks == count and point is None
    ]
    return words


def _between(point: ScalingPoint) -> str:
    return f"{point.low:,.1f} to {point.high:,.1f}" if point.num_runs > 1 else "one run, no interval"


def _points_table(found: Scaling) -> Table:
    return Table(
        head=("ranks", "batch", "samples/s", "80 % interval", "speed-up", "eff.", "step ms", "runs"),
        rows=[
            (
                f"{point.ranks}", f"{point.batch or '–'}", f"{point.samples_per_s:,.1f}", _between(point),
                f"{point.speedup:.2f}", f"{point.efficiency:.2f}", f"{point.step_s * 1e3:,.1f}", f"{point.num_runs}",
            )
            for point in found.points
        ],
        marked=next((number for number, point in enumerate(found.points) if point.ranks == found.knee), None),
        caption="Batch: samples of one rank." + (" Bold: the knee." if found.knee else ""),
    )  # fmt: skip


def _efficiency(found: Scaling) -> Chart:
    x = [point.ranks for point in found.points]
    halves = [_half_width(p, found.points[0]) for p in found.points]
    low, high = ([max(0.0, p.efficiency * (1 + side * half)) for p, half in zip(found.points, halves, strict=True)]
                 for side in (-1, 1))  # fmt: skip
    return Chart(
        spoken="Efficiency over ranks: "
        + "; ".join(f"{counted(p.ranks, 'rank')} {p.efficiency:.2f}" for p in found.points),
        x=ranks_axis(x, "ranks"),
        y=Axis(title="efficiency", show=lambda value: f"{value:.1f}", low=0.0, high=max(1.05, *high)),
        lines=[
            Line(name="ideal", x=x, y=[1.0] * len(x), look="ideal"),
            Line(name="measured", x=x, y=[p.efficiency for p in found.points], low=low, high=high, has_dots=True),
        ],
        stops=[
            Stop(x=p.ranks, words=[counted(p.ranks, "rank"), f"efficiency {p.efficiency:.2f}"]) for p in found.points
        ],
        marks=[(found.knee, "knee")] if found.knee else [],
    )


def _half_width(point: ScalingPoint, first: ScalingPoint) -> float:
    """Of the efficiency's 80 % interval, relative; the runs of both count, and of the first against itself none."""
    if point is first or point.num_runs < 2 or first.num_runs < 2:
        return 0.0
    return hypot(*(one.high / one.samples_per_s - 1 for one in (point, first)))


def _factors(found: Scaling) -> list[Content]:
    points = [p for p in found.points if p.load_balance is not None and p.communication_efficiency is not None]
    if len(points) < 2:
        return []
    named: dict[str, Callable[[ScalingPoint], float]] = {
        "parallel efficiency": lambda point: point.parallel_efficiency or 0.0,
        "load balance": lambda point: point.load_balance or 0.0,
        "communication efficiency": lambda point: point.communication_efficiency or 0.0,
        "computation": lambda point: _computation(point, points[0]),
    }
    looks = ("main", "wait", "transfer", "forward")
    x = [point.ranks for point in points]
    values = {name: [of(point) for point in points] for name, of in named.items()}
    top = max(1.05, *(value * 1.02 for row in values.values() for value in row))
    chart = Chart(
        spoken="Factors over ranks: "
        + "; ".join(f"{name} {row[0]:.2f} to {row[-1]:.2f}" for name, row in values.items()),
        x=ranks_axis(x, "ranks"),
        y=Axis(title="factor", show=lambda value: f"{value:.1f}", low=0.0, high=top),
        lines=[
            Line(name=name, x=x, y=row, look=look, has_dots=True)
            for (name, row), look in zip(values.items(), looks, strict=True)
        ],
        stops=[
            Stop(x=count, words=[counted(count, "rank"), *(f"{name} {row[at]:.2f}" for name, row in values.items())])
            for at, count in enumerate(x)
        ],
    )
    rows = [(f"{count}", *(f"{row[at]:.2f}" for row in values.values())) for at, count in enumerate(x)]
    return [chart, Table(head=("ranks", *values), rows=rows)]


def _computation(point: ScalingPoint, first: ScalingPoint) -> float:
    explained = 1.0
    for name in ("load_balance", "communication_efficiency"):
        explained *= (getattr(point, name) or 1.0) / (getattr(first, name) or 1.0)
    return point.efficiency / first.efficiency / max(explained, 1e-9)


def _phases(found: Scaling) -> list[Content]:
    used = [name for name in PHASES if any(point.phases_s.get(name) for point in found.points)]
    # what does not shrink stands at the bottom, where columns are compared most easily
    names = [name for name in used if name in SERIAL_PHASES] + [name for name in used if name not in SERIAL_PHASES]
    stacks = Stacks(
        spoken="Milliseconds of a step by phase: "
        + "; ".join(f"{counted(p.ranks, 'rank')} {p.step_s * 1e3:,.1f} ms" for p in found.points),
        x_title="ranks",
        y_title="ms of a step",
        names=names,
        groups=[
            (
                f"{point.ranks}",
                [
                    Column(
                        parts={name: value * 1e3 for name, value in point.phases_s.items()},
                        words=[f"{counted(point.ranks, 'rank')}, {point.step_s * 1e3:,.1f} ms",
                               *(f"{name} {point.phases_s[name] * 1e3:,.2f} ms" for name in names
                                 if point.phases_s.get(name))],
                    )
                ],
            )
            for point in found.points
        ],
    )  # fmt: skip
    rows = [(f"{p.ranks}", *(f"{p.phases_s.get(name, 0.0) * 1e3:,.2f}" for name in used)) for p in found.points]
    return [stacks, Table(head=("ranks", *used), rows=rows, caption="ms of a step, mean over ranks")]


def _memory_note(found: Scaling) -> str:
    is_device = all(point.is_device_memory for point in found.points)
    return "The most that a rank held, on its device." if is_device else "The most that a rank held."


def _memory(found: Scaling) -> Table:
    rows = [(f"{point.ranks}", f"{point.batch or '–'}", figures.size(point.peak_bytes)) for point in found.points]
    return Table(head=("ranks", "batch", "peak of a rank"), rows=rows)


def _laws_table(found: Scaling, fitted: Ranges) -> Table:
    largest = max(point.ranks for point in found.points)
    beyond = sorted({entry.ranks for law in fitted.values() for entry in law if entry.ranks > largest})
    rows = []
    for name, law in fitted.items():
        error = found.errors.get(name)
        row = [name, f"{found.parameters.get(name, '–')}", "–" if error is None else f"{error:.1%}"]
        row += [f"{e.value:,.0f} ({e.low:,.0f} to {e.high:,.0f})" for e in law if e.ranks > largest]
        rows.append(row)
    return Table(
        head=("law", "numbers", "error", *(f"samples/s at {count:,} ranks" for count in beyond)),
        rows=rows,
        words=frozenset({0}),
        caption="Numbers: how many were fitted; error: the largest on the points. In brackets what the points’ "
        "intervals leave open, 80 %; that the law itself is wrong is not in it.",
    )
