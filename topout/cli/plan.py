"""`topout plan`: how many nodes are worth asking for."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from topout.cli.page_files import check_file, check_page, write_file, write_page
from topout.cli.plan_page import plan_page
from topout.cli.plan_request import Planned, left_to_script, options_of, request, script_of
from topout.cli.plan_text import plan_text
from topout.cli.plan_work import look_into_run, of_epochs, of_target
from topout.cli.what_ifs import apply_all
from topout.report.json_report import encode
from topout.schema.errors import ExitCode, TopoutError
from topout.study.critical_batch import CriticalBatch, given
from topout.study.curve import check_nodes, node_counts, warnings
from topout.study.description import read_job, read_system
from topout.study.devices import read_prices
from topout.study.mesh_proposal import propose, propose_each
from topout.study.plan import Deadline, Plan
from topout.study.plan import plan as make_plan
from topout.study.system import System
from topout.submit.duration import parse_duration

PLAN_VERSION = 1


def plan(
    job: str,
    /,
    *,
    system: str,
    samples: float | None = None,
    epochs: float | None = None,
    target_loss: float | None = None,
    losses: Path | None = None,
    curve_batch: int | None = None,
    critical_batch: str | None = None,
    max_nodes: int | None = None,
    nodes: str | None = None,
    within: str | None = None,
    certainty: float | None = None,
    prices: Path | None = None,
    mesh: Path | None = None,
    what_if: Annotated[list[str] | None, Parameter(consume_multiple=False, negative="")] = None,
    html: Path | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Say how long training takes and what it costs on every number of nodes, and which are fastest and cheapest.

    Parameters
    ----------
    job
        A job of topout's, a .toml or .json file (topout calibrate writes one), or a run folder that has one.
    system
        A system of topout's, a .toml or .json file, or a run folder that has one.
    samples
        Samples in one epoch.
    epochs
        Epochs that a small batch needs to the target. Default: 1.
    target_loss
        Train until this loss, as the curve of --losses will reach it, instead of --samples and --epochs.
    losses
        A .csv or .json with samples (or step) and loss; losses.csv of the run folder when left out.
    curve_batch
        Batch of all ranks when the losses were written down; as the run recorded it when left out.
    critical_batch
        2000, or 2000:1500:3000 with its 80 % range, or the .json of topout.probe_batch; the run's when left out.
    max_nodes
        The most to consider; all of the system when left out.
    nodes
        Exactly these, such as 1,2,4 or 1..64, in place of --max-nodes.
    within
        Ask for the fewest node-hours that end in this time, such as 24h.
    certainty
        How sure to be of ending in the time of --within. Default: 0.9.
    prices
        A TOML file of dated prices, as for topout hardware --for.
    mesh
        Where to write the mesh, should one be proposed: a .toml file that is not there yet, or a folder.
    what_if
        A changed value, as for topout simulate; may be given several times.
    html
        Write it as a page, too: a file that ends in .html, or a folder.
    json
        Print all of it as JSON.
    """
    _check_towards(samples, epochs, target_loss, losses, curve_batch)
    page = check_page(html, "plan.html")
    mesh = check_file(mesh, "--mesh", "mesh.toml", lambda _: "A mesh may hold rules by hand.")
    seen = look_into_run(job)
    before = Planned(read_job(seen.job), read_system(system))
    described, machine, changed = apply_all(what_if or [], *before)
    counts = _counts(nodes, max_nodes, machine.value)
    critical = given(critical_batch) if critical_batch is not None else seen.critical
    deadline = _deadline(within, certainty)
    work, said = (
        of_epochs(samples, 1.0 if epochs is None else epochs, critical)
        if target_loss is None
        else of_target(target_loss, losses or seen.losses, seen.batch if curve_batch is None else curve_batch, critical)
    )
    meshes = propose_each(described, machine, counts, work)
    found = make_plan(
        described,
        machine,
        work,
        counts,
        deadline=deadline,
        prices=read_prices(prices) if prices is not None else None,
        run_batch=seen.batch,
        meshes=meshes,
    )
    found = found if found.mesh else replace(found, mesh=propose(described, machine, max(counts), work))
    _write_mesh(found, mesh)
    said += [*(() if critical else seen.why_no_critical), *found.notes, *(found.mesh.notes if found.mesh else ())]
    options = options_of(seen.run, before, Planned(described, machine), seen.loader_batch, is_mesh=bool(meshes))
    changed += left_to_script(seen.run, before.job, described, options)
    notes = [*changed, *said, *warnings(described, machine, counts, can_scale=False)]
    title = f"{described.value.title} on {machine.value.title}"
    line = request(found, script_of(seen.run), options, deadline=deadline)
    _tell(found, title, line, critical, notes, json=json)
    if page is not None:
        known, is_known = described.value.calibrated_nodes, script_of(seen.run) is not None
        write_page(page, plan_page(found, title, line, is_script_known=is_known, calibrated_nodes=known, notes=notes))
    return ExitCode.FINE


def _tell(
    found: Plan, title: str, line: str, critical: CriticalBatch | None, notes: Sequence[str], *, json: bool
) -> None:
    """`line` asks for what is recommended."""
    if json:
        extra = {"critical_batch": critical, "mesh_toml": found.mesh and found.mesh.toml}
        sys.stdout.write(encode({"version": PLAN_VERSION, **asdict(found), **extra}))
    else:
        print(f"{title}\n\n{plan_text(found)}\n\nNext    {line}")
    for note in notes:
        print(f"Note    {note}", file=sys.stderr)


def _check_towards(
    samples: float | None,
    epochs: float | None,
    target_loss: float | None,
    losses: Path | None,
    curve_batch: int | None,
) -> None:
    """An amount or a loss, and what belongs to it: what is given and not used would be taken for used."""
    of_amount, of_loss = {"--samples": samples, "--epochs": epochs}, {"--losses": losses, "--curve-batch": curve_batch}
    for option, value in (of_loss if target_loss is None else of_amount).items():
        if value is not None:
            raise TopoutError(
                f"{option} {value} is for another target.",
                why="A plan trains towards --samples and --epochs, or towards --target-loss by --losses.",
                do="leave it out, or --target-loss 0.6 --losses losses.csv",
            )


def _counts(nodes: str | None, max_nodes: int | None, system: System) -> list[int]:
    if max_nodes is not None and max_nodes < 1:
        raise TopoutError(f"--max-nodes {max_nodes} are none.", why="A job runs on one at least.", do="--max-nodes 64")
    if nodes is not None and max_nodes is not None:
        raise TopoutError(
            f"--nodes {nodes} and --max-nodes {max_nodes} exclude each other.",
            why="--nodes says exactly which numbers to consider, --max-nodes to consider all up to one.",
            do="leave one of them out",
        )
    found = node_counts(nodes or f"1..{system.nodes if max_nodes is None else min(max_nodes, system.nodes)}")
    check_nodes(found, system)
    return found


def _deadline(within: str | None, asked: float | None) -> Deadline | None:
    certainty = 0.9 if asked is None else asked
    if not 0 < certainty < 1:
        raise TopoutError(f"{certainty} is no certainty.", why="It lies between 0 and 1.", do="--certainty 0.9")
    if within is not None:
        return Deadline(hours=parse_duration(within, "--within") / 3600, certainty=certainty)
    if asked is not None:
        raise TopoutError(
            f"--certainty {asked} stands alone.",
            why="It is that of ending within a time, and none is given.",
            do="--within 24h, or leave out --certainty",
        )
    return None


def _write_mesh(found: Plan, path: Path | None) -> None:
    if path is None or found.mesh is None:
        return
    write_file(path, found.mesh.toml, "--mesh mesh.toml")
    print(f"{path}", file=sys.stderr)
