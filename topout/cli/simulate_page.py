"""A simulation as a page: throughput over nodes with its interval, efficiency, and what a step consists of."""

from collections.abc import Sequence
from dataclasses import dataclass

from topout.cli.scale_page import ranks_axis
from topout.report import figures
from topout.report.axes import Axis, Chart, Line, Stop
from topout.report.stacks import Column, Stacks
from topout.report.study_page import Answer, Content, Section, StudyPage, Table
from topout.schema.counted import counted
from topout.study.curve import FAR, Point
from topout.study.description import Ranged
from topout.study.job import Job
from topout.study.step_model import PARTS
from topout.study.system import System


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """What was asked and what came out."""

    job: str
    system: str
    calibrated_nodes: int
    points: Sequence[Point]
    before: Sequence[Point] = ()
    """The same without the changes; empty where nothing was changed."""
    changes: Sequence[str] = ()
    notes: Sequence[str] = ()

    @classmethod
    def of(
        cls, job: Ranged[Job], system: Ranged[System], points: Sequence[Point], before: Sequence[Point],
        *, changes: Sequence[str], notes: Sequence[str],
    ) -> "Simulation":  # fmt: skip
        return cls(
            job=job.value.title,
            system=system.value.title,
            calibrated_nodes=job.value.calibrated_nodes,
            points=points,
            before=before,
            changes=changes,
            notes=notes,
        )


def simulate_page(found: Simulation) -> StudyPage:
    points = sorted(found.points, key=lambda point: point.nodes)
    sections = [
        Section(
            key="throughput", title="Throughput", how="predicted",
            note="Samples a second of all nodes, both axes doubling, with an 80 % interval. Ideal: as many times one "
            "node’s rate as there are nodes.",
            content=[_throughput(found, points), _table(found, points)],
        ),
        Section(
            key="efficiency", title="Efficiency", how="predicted",
            note="Rate of a node against that of one alone, with an 80 % interval of that ratio.",
            content=[_efficiency(found, points)] if len(points) > 1 else [],
        ),
        Section(
            key="step", title="A step", how="predicted",
            note="From a step that computes and waits for nobody to the whole of it.", content=_step(found, points),
        ),
    ]  # fmt: skip
    return StudyPage(
        kind="simulation",
        title=f"{found.job} on {found.system}",
        facts=[f"{points[0].nodes:,} to {points[-1].nodes:,} nodes", *found.changes],
        answers=[_answer(found, points)],
        sections=sections,
        notes=found.notes,
        origin="topout simulate",
    )


def shaded(calibrated_nodes: int, most: int) -> tuple[float, str] | None:
    """Beyond four times of what the job's numbers come from a prediction deserves a warning."""
    if not calibrated_nodes or most <= FAR * calibrated_nodes:
        return None
    return (
        FAR * calibrated_nodes,
        f"beyond {FAR} × the {counted(calibrated_nodes, 'node')} measured",
    )


def _answer(found: Simulation, points: Sequence[Point]) -> Answer:
    last = points[-1]
    losses = {part: value for part, value in last.step.parts.items() if part != "compute"}
    worst = max(losses, key=lambda part: losses[part])
    share = losses[worst] / last.step.seconds
    evidence = [
        f"{last.samples_per_s:,.0f} samples/s at {last.nodes:,} nodes (interval {_between(last)}), "
        f"{last.step.seconds * 1e3:,.1f} ms a step."
    ]
    cards = [
        ("Samples per second", figures.amount(last.samples_per_s), f"{last.nodes:,} nodes, {last.ranks:,} ranks"),
        ("Efficiency", f"{last.efficiency:.2f}", "against one node"),
        (
            "A step",
            f"{last.step.seconds * 1e3:,.1f} ms",
            f"{last.step.parts['compute'] / last.step.seconds:.1%} computes",
        ),
    ]
    old = {point.nodes: point for point in found.before}.get(last.nodes)
    if old is not None:
        ratio = last.samples_per_s / old.samples_per_s
        cards.append(("Change", f"x{ratio:.2f}", f"against {figures.amount(old.samples_per_s)} samples/s without it"))
        evidence.append(f"With {', '.join(f'`{change}`' for change in found.changes)}: x{ratio:.2f}.")
    verb = "take" if worst.endswith("s") else "takes"
    rest = f"{worst} {verb} {share:.1%} of a step at {last.nodes:,} nodes."
    if share < 0.01:
        rest = f"all but {1 - last.step.parts['compute'] / last.step.seconds:.1%} of a step computes."
    return Answer(
        lead=f"Efficiency {last.efficiency:.2f} at {counted(last.nodes, 'node')}: ",
        rest=rest, evidence=evidence, figures=cards,
    )  # fmt: skip


def _throughput(found: Simulation, points: Sequence[Point]) -> Chart:
    x = [point.nodes for point in points]
    # efficiency is against one node, which need not be among the points
    one = points[0].samples_per_s / points[0].nodes / points[0].efficiency
    lines = [Line(name="ideal", x=x, y=[one * count for count in x], look="ideal")]
    if found.before:
        lines.append(_rates(found.before, "without the change", "before"))
    lines.append(_rates(points, "predicted", "main"))
    old = {point.nodes: point for point in found.before}
    return Chart(
        spoken="Samples a second over nodes: "
        + "; ".join(f"{point.nodes:,} nodes {point.samples_per_s:,.0f}" for point in points),
        x=ranks_axis(x, "nodes"),
        y=Axis(title="samples/s", show=figures.amount, is_log=True),
        lines=lines,
        stops=[Stop(x=point.nodes, words=_words(point, old.get(point.nodes), one)) for point in points],
        beyond=shaded(found.calibrated_nodes, max(x)),
    )


def _between(point: Point) -> str:
    """A description without ranges has no interval."""
    return f"{point.low:,.0f} to {point.high:,.0f}" if point.low < point.high else "not known"


def _rates(points: Sequence[Point], name: str, look: str) -> Line:
    return Line(
        name=name,
        look=look,
        has_dots=True,
        x=[point.nodes for point in points],
        y=[point.samples_per_s for point in points],
        low=[point.low for point in points],
        high=[point.high for point in points],
    )


def _words(point: Point, old: Point | None, one: float) -> list[str]:
    words = [
        f"{point.nodes:,} nodes, {point.ranks:,} ranks",
        f"{point.samples_per_s:,.0f} samples/s, interval {_between(point)}",
        f"ideal {one * point.nodes:,.0f}",
    ]
    return [*words, f"without the change {old.samples_per_s:,.0f}"] if old is not None else words


def _efficiency(found: Simulation, points: Sequence[Point]) -> Chart:
    x = [point.nodes for point in points]
    lines = [Line(name="ideal", x=x, y=[1.0] * len(x), look="ideal")]
    for named, of in (("without the change", found.before), ("predicted", points)):
        if of:
            low, high = zip(*(p.efficiency_range or (p.efficiency, p.efficiency) for p in of), strict=True)
            lines.append(
                Line(name=named, look="main" if of is points else "before", x=[p.nodes for p in of],
                     y=[p.efficiency for p in of], low=low, high=high, has_dots=True)
            )  # fmt: skip
    top = max(1.05, *(value for line in lines for value in (*line.y, *line.high)))
    return Chart(
        spoken="Efficiency over nodes: " + "; ".join(f"{p.nodes:,} nodes {p.efficiency:.2f}" for p in points),
        x=ranks_axis(x, "nodes"),
        y=Axis(title="efficiency", show=lambda value: f"{value:.1f}", low=0.0, high=top),
        lines=lines,
        stops=[Stop(x=p.nodes, words=[f"{p.nodes:,} nodes", f"efficiency {p.efficiency:.2f}"]) for p in points],
        beyond=shaded(found.calibrated_nodes, max(x)),
    )


def _shown(points: Sequence[Point]) -> list[str]:
    return [part for part in PARTS if any(p.step.parts[part] >= 0.0005 * p.step.seconds for p in points)]


def _step(found: Simulation, points: Sequence[Point]) -> list[Content]:
    names = _shown([*points, *found.before])
    old = {point.nodes: point for point in found.before}
    groups = []
    for point in points:
        columns = [_column(old[point.nodes], names, is_faint=True)] if point.nodes in old else []
        groups.append((f"{point.nodes:,}", [*columns, _column(point, names)]))
    stacks = Stacks(
        spoken="Milliseconds of a step by part: "
        + "; ".join(f"{p.nodes:,} nodes {p.step.seconds * 1e3:,.1f} ms" for p in points),
        x_title="nodes",
        y_title="ms of a step",
        names=names,
        groups=groups,
    )
    rows = [
        (f"{p.nodes:,}", f"{p.step.seconds * 1e3:,.1f}", *(f"{p.step.parts[name] * 1e3:,.2f}" for name in names))
        for p in points
    ]
    return [stacks, Table(head=("nodes", "step ms", *names), rows=rows, caption="ms; the parts add up to the step")]


def _column(point: Point, names: Sequence[str], *, is_faint: bool = False) -> Column:
    parts = {name: point.step.parts[name] * 1e3 for name in names}
    first = f"{point.nodes:,} nodes, {point.step.seconds * 1e3:,.1f} ms{', without the change' if is_faint else ''}"
    return Column(
        parts=parts,
        is_faint=is_faint,
        words=[first, *(f"{name} {value:,.2f} ms" for name, value in parts.items() if value)],
    )


def _table(found: Simulation, points: Sequence[Point]) -> Table:
    old = {point.nodes: point.samples_per_s for point in found.before}
    head = ["nodes", "ranks", "step ms", "samples/s", "80 % interval", "eff."]
    rows = [
        [
            f"{p.nodes:,}", f"{p.ranks:,}", f"{p.step.seconds * 1e3:,.1f}", f"{p.samples_per_s:,.0f}",
            _between(p), f"{p.efficiency:.2f}",
        ]
        for p in points
    ]  # fmt: skip
    if old:
        head.append("change")
        for row, point in zip(rows, points, strict=True):
            row.append(f"x{point.samples_per_s / old[point.nodes]:.2f}" if point.nodes in old else "")
    return Table(head=head, rows=rows)
