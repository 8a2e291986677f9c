"""`topout simulate`: what a job would do on another number of nodes, or on another machine."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from topout.cli.page_files import check_page, write_page
from topout.cli.simulate_page import Simulation, simulate_page
from topout.cli.simulate_text import more_text
from topout.cli.what_ifs import apply_all
from topout.report.json_report import encode
from topout.schema.errors import ExitCode, TopoutError
from topout.study.curve import Point, curve, node_counts, warnings
from topout.study.description import read_job, read_system
from topout.study.failures import age
from topout.study.simulate import Slow
from topout.study.step_model import PARTS
from topout.study.waterfall import waterfall as waterfall_of
from topout.study.what_if import on_device, slow_ranks
from topout.submit.duration import parse_duration

SIMULATE_VERSION = 1
MOST_STEPS = 100_000


def simulate(
    job: str,
    /,
    *,
    system: str,
    nodes: str = "1..16",
    what_if: Annotated[list[str] | None, Parameter(consume_multiple=False, negative="")] = None,
    device: str | None = None,
    slow: str | None = None,
    steps: int = 200,
    seed: int = 0,
    waterfall: Annotated[bool, Parameter(negative="")] = False,
    failures: str | None = None,
    html: Path | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Predict seconds and samples a second of a job on a system, with 80 % intervals.

    Parameters
    ----------
    job
        A job of topout's, such as resnet50-v100, a .toml or .json file, or a run folder after topout calibrate.
    system
        A system of topout's, such as summit, a .toml or .json file, or a run folder after topout calibrate.
    nodes
        16, or 1,2,4, or 1..4608 for powers of two up to there. Default: 1..16.
    what_if
        A changed value, such as input.source=shared or between.bytes_per_s=25e9; may be given several times.
    device
        Another device of `topout hardware`.
    slow
        Ranks that are slower for good, such as 1x1.5.
    steps
        Steps to simulate at each point. Default: 200.
    seed
        Of the random numbers. Default: 0.
    waterfall
        From the step of a rank alone to the predicted one, part by part.
    failures
        Draw failures and restarts of a training that would take so long without any, such as 30d or 12h.
    html
        Write it as a page, too: a file that ends in .html, or a folder.
    json
        Print all of it as JSON.
    """
    page = check_page(html, "simulation.html")
    _check_drawing(steps, seed)
    undisturbed_s = parse_duration(failures, "--failures") if failures is not None else None
    plain_job, plain_system = read_job(job), read_system(system)
    asked_job, asked_system, said = apply_all(what_if or [], plain_job, plain_system)
    if device is not None:
        asked_job = on_device(asked_job, device)
    counts = node_counts(nodes)
    slowed = slow_ranks(slow) if slow is not None else None
    points = curve(asked_job, asked_system, counts, steps=steps, seed=seed, slow=slowed)
    is_changed = bool(what_if or device or slow)
    within = [count for count in counts if count <= plain_system.value.nodes]
    before = curve(plain_job, plain_system, within, steps=steps, seed=seed) if is_changed and within else []
    falls = {point.nodes: waterfall_of(point.step, asked_job.value, asked_system.value, point.nodes, steps=steps,
                                       seed=seed, slow=slowed) for point in points if waterfall}  # fmt: skip
    ages = [age(asked_job.value, point.step, point.nodes, undisturbed_s, seed=seed)
            for point in points if undisturbed_s is not None]  # fmt: skip
    said = [*(said or _without_effect(points, before)), *_too_many_slow(slowed, points)]
    notes = [*said, *warnings(asked_job, asked_system, counts, is_scaled=device is not None)]
    if json:
        rows = [{**asdict(point), "step_s": point.step.seconds} for point in points]
        document = {"version": SIMULATE_VERSION, "points": rows, "before": [asdict(p) for p in before]}
        sys.stdout.write(encode(document | {"waterfalls": falls, "trainings": ages}))
    else:
        print(f"{asked_job.value.title} on {asked_system.value.title}\n\n{_table(points, before)}")
        print(more_text(falls, ages), end="")
    for line in notes:
        print(f"Note    {line}", file=sys.stderr)
    if page is not None:
        changes = [*(what_if or []), *([f"device {device}"] if device else []), *([f"slow {slow}"] if slow else [])]
        drawn = Simulation.of(asked_job, asked_system, points, before, changes=changes, notes=notes)
        write_page(page, simulate_page(drawn))
    return ExitCode.FINE


def _without_effect(points: list[Point], before: list[Point]) -> list[str]:
    """The same random numbers were drawn for both, so that what has any effect shows."""
    is_same = bool(before) and all(point in points for point in before)
    return ["What was changed has no effect: the job or the system has nothing that it bears on."] if is_same else []


def _too_many_slow(slow: Slow | None, points: list[Point]) -> list[str]:
    fewer = [point for point in points if slow is not None and slow.ranks > point.ranks]
    if slow is None or not fewer:
        return []
    ranks = max(point.ranks for point in fewer)
    return [f"--slow names {slow.ranks:,} ranks: where there are fewer, up to {ranks:,} here, all of them are slow."]


def _check_drawing(steps: int, seed: int) -> None:
    if steps < 1:
        raise TopoutError(f"--steps {steps} are none.", why="One at least is simulated.", do="--steps 200")
    if steps > MOST_STEPS:
        raise TopoutError(
            f"--steps {steps} are too many.",
            why=f"At most {MOST_STEPS:,} are simulated at each point; their mean hardly moves after some hundred.",
            do="--steps 200",
        )
    if seed < 0:
        raise TopoutError(f"--seed {seed} is no seed.", why="It is 0 or more.", do="--seed 0")


def _table(points: list[Point], before: list[Point]) -> str:
    shown = [part for part in PARTS if any(point.step.parts[part] >= 0.0005 * point.step.seconds for point in points)]
    old = {point.nodes: point.samples_per_s for point in before}
    lines = [
        f"{'nodes':>6} {'ranks':>8} {'step ms':>9} {'samples/s':>11} {'80 % interval':>27} {'eff.':>5}"
        + (f" {'change':>7}" if before else "")
        + "".join(f" {part:>{max(6, len(part))}}" for part in shown)
    ]
    for point in points:
        change = ""
        if before:
            ratio = f"x{point.samples_per_s / old[point.nodes]:.2f}" if point.nodes in old else ""
            change = f" {ratio:>7}"
        shares = "".join(f" {point.step.parts[part] / point.step.seconds:>{max(6, len(part))}.1%}" for part in shown)
        lines.append(
            f"{point.nodes:>6,} {point.ranks:>8,} {point.step.seconds * 1e3:>9,.1f} {point.samples_per_s:>11,.0f} "
            f"{_interval(point):>27} {point.efficiency:>5.2f}{change}{shares}"
        )
    return "\n".join(lines)


def _interval(point: Point) -> str:
    return f"{point.low:,.0f} to {point.high:,.0f}" if point.low < point.high else "not known"
