"""`topout plan`: how many nodes are worth asking for."""

import sys
from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter

from topout.report.json_report import encode
from topout.schema.errors import ExitCode, TopoutError
from topout.study.curve import node_counts, warnings
from topout.study.description import read_job, read_system
from topout.study.plan import Choice, Plan, Work
from topout.study.plan import plan as make_plan
from topout.study.what_if import apply

PLAN_VERSION = 1


def plan(
    job: str,
    /,
    *,
    system: str,
    samples: float,
    epochs: float = 1,
    critical_batch: str | None = None,
    max_nodes: int | None = None,
    nodes: str | None = None,
    what_if: Annotated[list[str] | None, Parameter(consume_multiple=False, negative="")] = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Say how long training takes and what it costs on every number of nodes, and which are fastest and cheapest.

    Parameters
    ----------
    job
        A job of topout's, or a .toml or .json file (topout calibrate writes one).
    system
        A system of topout's, or a .toml or .json file.
    samples
        In one epoch.
    epochs
        That a small batch needs to the target.
    critical_batch
        From topout.probe_batch: 2000, or 2000:1500:3000 with its 80 % range.
    max_nodes
        The most to consider; all of the system when left out.
    nodes
        Exactly these, such as 1,2,4 or 1..64.
    what_if
        A changed value, as for topout simulate; may be given several times.
    json
        Print all of it as JSON.
    """
    described, machine = read_job(job), read_system(system)
    for assignment in what_if or []:
        described, machine = apply(assignment, described, machine)
    counts = node_counts(nodes or f"1..{min(max_nodes or machine.value.nodes, machine.value.nodes)}")
    work = Work(samples=samples * epochs, critical_batch=_critical(critical_batch))
    found = make_plan(described, machine, work, counts)
    if json:
        sys.stdout.write(encode({"version": PLAN_VERSION, **asdict(found)}))
    else:
        print(f"{described.value.title} on {machine.value.title}\n")
        print(_table(found))
        print(_request(found))
    for line in [*found.notes, *warnings(described, machine, counts)]:
        print(f"Note    {line}", file=sys.stderr)
    return ExitCode.FINE


def _critical(text: str | None) -> tuple[float, float, float] | None:
    if text is None:
        return None
    try:
        parts = [float(part) for part in text.split(":")]
        value, low, high = parts if len(parts) == 3 else (parts[0], parts[0] / 1.5, parts[0] * 1.5)
        if not 0 < low <= value <= high or len(parts) not in (1, 3):
            raise ValueError(text)
    except (ValueError, IndexError):
        raise TopoutError(
            f"{text!r} is no critical batch.",
            why="It is a number of samples, or VALUE:LOW:HIGH in that sense.",
            do="--critical-batch 2000:1500:3000",
        ) from None
    return value, low, high


def _table(found: Plan) -> str:
    lines = [f"{'nodes':>6} {'batch':>9} {'hours':>9} {'80 % interval':>19} {'node-hours':>11} {'eff.':>5}"]
    names = {id(found.fastest): "fastest", id(found.cheapest): "cheapest", id(found.best_value): "best value"}
    for choice in found.choices:
        marks = [name for key, name in names.items() if key == id(choice)]
        if found.fastest is found.best_value is choice:
            marks = ["fastest, best value"]
        lines.append(
            f"{choice.nodes:>6,} {choice.batch:>9,} {_hours(choice.hours):>9} "
            f"{f'{_hours(choice.low_hours)} to {_hours(choice.high_hours)}':>19} {choice.node_hours:>11,.1f} "
            f"{choice.efficiency:>5.2f}  {', '.join(marks)}".rstrip()
        )
    return "\n".join(lines)


def _hours(hours: float) -> str:
    return f"{hours:,.1f} h" if hours >= 1 else f"{hours * 60:,.1f} min"


def _request(found: Plan) -> str:
    choice: Choice = found.best_value
    # a job that ends a minute too early has lost everything since its checkpoint
    minutes = max(10, round(choice.high_hours * 60 * 1.2))
    return f"\nNext    topout submit --nodes {choice.nodes} --time {minutes // 60}:{minutes % 60:02d}:00 train.py"
