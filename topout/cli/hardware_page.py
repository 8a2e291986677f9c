"""Devices for one job as a page: how they rank, and the rooflines under which the job stands."""

from topout.cli.rooflines import Ranking, rooflines
from topout.report.stacks import Column, Stacks
from topout.report.study_page import Answer, Section, StudyPage, Table
from topout.study.devices import Fit, unranked_prices

MOST_COLUMNS = 12


def hardware_page(found: Ranking) -> StudyPage:
    environment = found.measures.environment
    sections = [
        Section(
            key="ranking", title="Ranking", how="predicted",
            note="The step of one rank on each device. Rest: input, communication and host code, as they were in the "
            "run; no device makes them shorter.",
            content=[_columns(found), _table(found)],
        )
    ]  # fmt: skip
    sections += rooflines(found)
    return StudyPage(
        kind="devices for a job",
        title=found.run,
        facts=[environment.device_name or "run on processors", f"ranked for {found.precision}",
               *([f"prices of {found.prices.date}"] if found.prices else [])],
        answers=[_answer(found)],
        sections=sections,
        notes=_notes(found),
        origin=f"topout hardware --for {found.run}",
    )  # fmt: skip


def _answer(found: Ranking) -> Answer:
    step_s = found.measures.step.mean_ns / 1e9 if found.measures.step else 0.0
    best = found.fits[0]
    cards = [
        ("The run’s step", f"{step_s * 1e3:,.1f} ms", found.measures.environment.device_name or "on processors"),
        (
            f"On {best.device}",
            f"{best.step_s * 1e3:,.1f} ms",
            f"{best.low_s * 1e3:,.1f} to {best.high_s * 1e3:,.1f} ms",
        ),
    ]
    priced = [fit for fit in found.fits if fit.cost_per_million is not None and fit.bound != "memory size"]
    if priced and found.prices:
        cheapest = min(priced, key=lambda fit: fit.cost_per_million or 0.0)
        unit = found.prices.currency or "price units"
        cards.append(("Cheapest", cheapest.device, f"{cheapest.cost_per_million:,.2f} {unit} a million samples"))
    gain = step_s / best.step_s
    if best.bound == "not the device":
        lead = "What remains is not the device: "
        rest = f"{best.other_s / best.step_s:.0%} of a step on {best.device}, {gain:.2f} times the run’s rate."
    else:
        lead, rest = (
            f"{best.device} is quickest: ",
            f"{gain:.2f} times the run’s rate, bound by {best.bound}.",
        )
    unfit = [fit.device for fit in found.fits if fit.bound == "memory size"]
    evidence = [f"Does not fit: {', '.join(unfit)}."] if unfit else []
    return Answer(lead=lead, rest=rest, evidence=evidence, figures=cards)


def _columns(found: Ranking) -> Stacks:
    shown = [fit for fit in found.fits if fit.bound != "memory size"][:MOST_COLUMNS]
    return Stacks(
        spoken="Step by device: " + "; ".join(f"{fit.device} {fit.step_s * 1e3:,.1f} ms" for fit in shown),
        x_title="device, quickest first",
        y_title="ms of a step",
        names=("other", "compute"),
        groups=[
            (
                fit.device,
                [
                    Column(
                        parts={"other": fit.other_s * 1e3, "compute": (fit.step_s - fit.other_s) * 1e3},
                        words=[fit.device, f"{fit.step_s * 1e3:,.1f} ms, {_reach(fit)}", f"bound: {fit.bound}"],
                    )
                ],
            )
            for fit in shown
        ],
        renamed={"other": "rest"},
        has_long_names=True,
    )  # fmt: skip


def _reach(fit: Fit) -> str:
    return f"{fit.low_s * 1e3:,.1f} to {fit.high_s * 1e3:,.1f}"


def _table(found: Ranking) -> Table:
    has_prices = found.prices is not None
    head = ["device", "step ms", "range", "samples/s", "bound"]
    if found.prices is not None:
        head += [f"{found.prices.currency or 'cost'} / million", "kWh / million"]
    rows = []
    for fit in found.fits:
        row = [
            fit.device, f"{fit.step_s * 1e3:,.1f}", _reach(fit),
            f"{fit.samples_per_s:,.0f}" if fit.samples_per_s else "–", fit.bound,
        ]  # fmt: skip
        if has_prices:
            row += ["–" if value is None else f"{value:,.2f}"
                    for value in (fit.cost_per_million, fit.kilowatt_hours_per_million)]  # fmt: skip
        rows.append(row)
    return Table(head=head, rows=rows, words=frozenset({0, 4}))


def _notes(found: Ranking) -> list[str]:
    notes = [f"Ranked as if the job computes in {found.precision} (`--precision`); peaks are dense, from data sheets."]
    if not found.local:
        notes.append(
            "No measured peaks: `topout doctor` measures this machine, and its result is drawn beside the table."
        )
    else:
        hosts = ", ".join(f"{roof.host} on {roof.measured_at}" for roof in found.local[:6])
        notes.append(f"Measured by `topout doctor`: {hosts}. A job that shares the host reaches less.")
    if found.prices is None:
        notes.append("No prices were given: `--prices FILE` with dated prices and watts adds cost and energy.")
    elif (unranked := unranked_prices(found.prices, found.fits)) is not None:
        notes.append(unranked)
    return notes
