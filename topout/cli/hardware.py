"""`topout hardware`: what devices can do at most, and from which intensity on arithmetic holds them back."""

import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from topout.analyze.measure import measure_run
from topout.cli.diagnoses import read_diagnosis
from topout.cli.hardware_page import hardware_page
from topout.cli.local_roofs import local_roofs
from topout.cli.page_files import check_page, write_page
from topout.cli.rooflines import Ranking
from topout.preflight.hardware_table import find_named, listing, portrait, ridges
from topout.report.json_report import encode
from topout.schema.errors import ExitCode, TopoutError
from topout.schema.hardware import Device, devices, sources
from topout.schema.run_folder import open_run
from topout.study.devices import rank_devices, read_prices, unranked_prices

HARDWARE_VERSION = 1


def hardware(
    name: str | None = None,
    /,
    *,
    for_run: Annotated[Path | None, Parameter(name="--for")] = None,
    precision: str | None = None,
    prices: Path | None = None,
    doctor: Path | None = None,
    html: Path | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Print the hardware table with ridge points; with a name, one device and the origin of its figures.

    Parameters
    ----------
    name
        A device, such as H200 or 'EPYC 9654'.
    for_run
        A run folder: rank the devices by the step that its job would take on them.
    precision
        In which the job computes, for --for; bf16 when left out.
    prices
        A TOML file of dated prices and watts, for --for.
    doctor
        With --html: what topout doctor --json wrote, for the rooflines; the newest under topout-runs/doctor else.
    html
        With --for: write a page with rooflines, too; a file that ends in .html, or a folder.
    json
        Print every figure with unit, density, source and confidence as JSON.
    """
    page = check_page(html, "devices.html")
    if for_run is not None:
        if name is not None:
            raise TopoutError(
                f"{name} and --for {for_run} exclude each other.",
                why="A name asks for the figures of one device, --for ranks all of them for a run.",
                do="leave one of them out",
            )
        if doctor is not None and page is None:
            raise TopoutError(
                "--doctor stands alone.",
                why="It is for the rooflines, which only the page has; the ranking is by the table.",
                do="--html devices.html, or leave out --doctor",
            )
        return _rank(for_run, precision or "bf16", prices, page, doctor, json=json)
    for option, given in (("html", page), ("prices", prices), ("doctor", doctor), ("precision", precision)):
        if given is not None:
            raise TopoutError(
                f"--{option} stands alone.", why="It is for devices ranked for a run.", do="--for topout-runs/RUN"
            )
    found = [find_named(name)] if name is not None else list(devices())
    if json:
        sys.stdout.write(encode(_document(found)))
    else:
        width = min(shutil.get_terminal_size((110, 24)).columns, 110)
        print(portrait(found[0], width) if name is not None else listing(found, width))
    print(f"\nNext    {'topout hardware H200' if name is None else 'topout doctor'}", file=sys.stderr)
    return ExitCode.FINE


def _rank(run: Path, precision: str, prices: Path | None, page: Path | None, doctor: Path | None, *, json: bool) -> int:
    folder, _ = open_run(run)
    measures, _ = measure_run(folder)
    asked = read_prices(prices) if prices is not None else None
    found = rank_devices(measures, precision, asked)
    if asked is not None and (note := unranked_prices(asked, found)) is not None:
        print(f"Note    {note}", file=sys.stderr)
    if page is not None:
        local = local_roofs(read_diagnosis(doctor), precision)
        ranking = Ranking(
            run=folder.path.name, measures=measures, precision=precision, fits=found, prices=asked, local=local
        )
        write_page(page, hardware_page(ranking))
    if json:
        rows = [asdict(fit) for fit in found]
        sys.stdout.write(encode({"version": HARDWARE_VERSION, "prices": asked and asdict(asked), "devices": rows}))
        return ExitCode.FINE
    print(f"{'device':<22} {'step ms':>9} {'range':>19} {'samples/s':>10} {'bound':<14}"
          + (f" {asked.currency or 'cost'} and kWh a million samples, {asked.date}" if asked else ""))  # fmt: skip
    for fit in found:
        reach = f"{fit.low_s * 1e3:,.1f} to {fit.high_s * 1e3:,.1f}"
        rate = f"{fit.samples_per_s:,.0f}" if fit.samples_per_s else "–"
        cost = "" if fit.cost_per_million is None else f" {fit.cost_per_million:>9,.2f}"
        energy = "" if fit.kilowatt_hours_per_million is None else f" {fit.kilowatt_hours_per_million:>9,.2f} kWh"
        print(
            f"{fit.device:<22} {fit.step_s * 1e3:>9,.1f} {reach:>19} {rate:>10} {fit.bound:<14}{cost}{energy}".rstrip()
        )
    print("\nNext    topout hardware NAME", file=sys.stderr)
    return ExitCode.FINE


def _document(found: list[Device]) -> dict[str, Any]:
    used = {figure.source for device in found for figure in device.figures.values()}
    return {
        "version": HARDWARE_VERSION,
        "sources": {key: asdict(source) for key, source in sources().items() if key in used},
        "devices": [{**asdict(device), "ridge_flops_per_byte": ridges(device)} for device in found],
    }
