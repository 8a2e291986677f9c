"""A plan as a page: hours and node-hours over nodes, the three counts worth asking for, and the line that asks."""

from collections.abc import Callable, Sequence

from topout.cli.scale_page import ranks_axis
from topout.cli.simulate_page import shaded
from topout.report import figures
from topout.report.axes import Axis, Chart, Line, Stop
from topout.report.study_page import Answer, Command, Content, Passage, Section, StudyPage, Table
from topout.schema.counted import counted
from topout.study.plan import Choice, Plan


def plan_page(
    found: Plan, title: str, request: str, *, is_script_known: bool = False, calibrated_nodes: int = 0,
    facts: Sequence[str] = (), notes: Sequence[str] = (),
) -> StudyPage:  # fmt: skip
    """`request` is the `topout submit` line of what is recommended."""
    caption = "A click selects the line."
    if not is_script_known:
        caption += " `train.py` stands for your script."
    beyond = shaded(calibrated_nodes, max(choice.nodes for choice in found.choices))
    return StudyPage(
        kind="plan",
        title=title,
        facts=[f"{found.choices[0].nodes:,} to {found.choices[-1].nodes:,} nodes", *facts],
        answers=[_answer(found)],
        sections=[
            Section(
                key="request", title="Ask for it", how="predicted",
                note="With a fifth more time than the upper end of the interval"
                + (", within the time asked for." if found.within else "."),
                content=[Command(line=request, caption=caption)],
            ),
            Section(
                key="time", title="Time to solution", how="predicted",
                note="Hours until the work is done, both axes logarithmic, with an 80 % interval.",
                content=[_hours_chart(found, beyond), _table(found)],
            ),
            Section(
                key="cost", title="Node-hours", how="predicted",
                note="What the same work costs on more nodes; level would mean that nothing is lost.",
                content=[_cost_chart(found, beyond)],
            ),
            *_mesh(found),
        ],
        notes=notes,
        origin="topout plan",
    )  # fmt: skip


def hours_text(hours: float) -> str:
    return f"{hours:,.1f} h" if hours >= 1 else f"{hours * 60:,.1f} min"


def _named(found: Plan) -> dict[str, Choice]:
    named = {"fastest": found.fastest, "cheapest": found.cheapest, "best value": found.best_value}
    return named if found.within is None else {**named, "in time": found.within}


def _answer(found: Plan) -> Answer:
    best = found.recommended
    why = (
        "Best value is the least time times node-hours: from there on more nodes cost more than they bring."
        if found.within is None
        else "It is the fewest node-hours of all that end in time."
    )
    cost = [f"{best.cost:,.2f} {found.currency} at prices of {found.price_date}."] if best.cost is not None else []
    chance = [f"The chance to end in time is {best.chance:.0%}."] if best.chance is not None else []
    return Answer(
        lead=f"Ask for {counted(best.nodes, 'node')}: ",
        rest=f"{hours_text(best.hours)}, {best.node_hours:,.1f} node-hours.",
        evidence=[
            f"80 % interval {hours_text(best.low_hours)} to {hours_text(best.high_hours)}, a batch of {best.batch:,} "
            "over all ranks.",
            *cost, *chance, why,
        ],
        figures=[
            (
                name.capitalize(), f"{counted(choice.nodes, 'node')}",
                f"{hours_text(choice.hours)}, {choice.node_hours:,.1f} node-hours",
            )
            for name, choice in _named(found).items()
        ],
    )  # fmt: skip


def _marks(found: Plan) -> list[tuple[float, str]]:
    by_nodes: dict[int, list[str]] = {}
    for name, choice in _named(found).items():
        by_nodes.setdefault(choice.nodes, []).append(name)
    return [(nodes, ", ".join(names)) for nodes, names in by_nodes.items()]


def _chart(
    found: Plan, title: str, of: Callable[[Choice, float], float], show: Callable[[float], str],
    beyond: tuple[float, str] | None,
) -> Chart:  # fmt: skip
    """`of` turns hours of a choice into what the chart shows."""
    choices = found.choices
    x = [choice.nodes for choice in choices]
    return Chart(
        spoken=f"{title} over nodes: " + "; ".join(f"{c.nodes:,} nodes {show(of(c, c.hours))}" for c in choices),
        x=ranks_axis(x, "nodes"),
        y=Axis(title=title, show=show, is_log=True),
        lines=[
            Line(
                name=title, x=x, y=[of(c, c.hours) for c in choices], has_dots=True,
                low=[of(c, c.low_hours) for c in choices], high=[of(c, c.high_hours) for c in choices],
            )
        ],
        stops=[Stop(x=choice.nodes, words=_words(choice)) for choice in choices],
        marks=_marks(found),
        beyond=beyond,
    )  # fmt: skip


def _hours_chart(found: Plan, beyond: tuple[float, str] | None) -> Chart:
    return _chart(found, "time", lambda _, hours: hours, hours_text, beyond)


def _cost_chart(found: Plan, beyond: tuple[float, str] | None) -> Chart:
    return _chart(found, "node-hours", lambda choice, hours: hours * choice.nodes, figures.amount, beyond)


def _words(choice: Choice) -> list[str]:
    return [
        f"{counted(choice.nodes, 'node')}, batch {choice.batch:,}",
        f"{hours_text(choice.hours)}, {hours_text(choice.low_hours)} to {hours_text(choice.high_hours)}",
        f"{choice.node_hours:,.1f} node-hours, efficiency {choice.efficiency:.2f}",
    ]


def _table(found: Plan) -> Table:
    names = dict(_marks(found))
    head = ["nodes", "batch", "hours", "80 % interval", "node-hours", "eff."]
    more: list[tuple[str, Callable[[Choice], str]]] = []
    if any(choice.cost is not None for choice in found.choices):
        more.append((found.currency or "cost", lambda choice: "–" if choice.cost is None else f"{choice.cost:,.2f}"))
    if any(choice.chance is not None for choice in found.choices):
        more.append(("in time", lambda choice: "–" if choice.chance is None else f"{choice.chance:.0%}"))
    return Table(
        head=(*head, *(title for title, _ in more), ""),
        rows=[
            (
                f"{c.nodes:,}", f"{c.batch:,}", hours_text(c.hours),
                f"{hours_text(c.low_hours)} to {hours_text(c.high_hours)}", f"{c.node_hours:,.1f}",
                f"{c.efficiency:.2f}", *(of(c) for _, of in more), names.get(c.nodes, ""),
            )
            for c in found.choices
        ],
        marked=next(number for number, c in enumerate(found.choices) if c.nodes == found.recommended.nodes),
        words=frozenset({len(head) + len(more)}),
    )  # fmt: skip


def _mesh(found: Plan) -> list[Section]:
    mesh = found.mesh
    if mesh is None:
        return []
    sentences = [
        mesh.why,
        f"On {mesh.nodes:,} nodes a step of {mesh.step_s * 1e3:,.1f} ms ({mesh.low_s * 1e3:,.1f} to "
        f"{mesh.high_s * 1e3:,.1f}), {hours_text(mesh.hours)} in all ({hours_text(mesh.low_hours)} to "
        f"{hours_text(mesh.high_hours)})"
        + (f"; replicas alone {hours_text(mesh.replicas_hours)}." if mesh.replicas_hours is not None else "."),
    ]
    if mesh.bytes_per_rank and mesh.device_bytes:
        sentences.append(f"A rank holds {figures.size(mesh.bytes_per_rank)} of {figures.size(mesh.device_bytes)}.")
    content: list[Content] = [
        Passage(sentences=sentences),
        Command(line=mesh.toml, caption="`mesh.toml`; docs/hybrid.md"),
    ]
    note = "Where replicas alone no longer help, or do not fit."
    return [Section(key="mesh", title="A mesh instead", note=note, how="predicted", content=content)]
