"""`topout hardware`: what devices can do at most, and from which intensity on arithmetic holds them back."""

import shutil
import sys
from dataclasses import asdict
from typing import Annotated, Any

from cyclopts import Parameter

from topout.preflight.hardware_table import find_named, listing, portrait, ridges
from topout.report.json_report import encode
from topout.schema.errors import ExitCode
from topout.schema.hardware import Device, devices, sources

HARDWARE_VERSION = 1


def hardware(name: str | None = None, /, *, json: Annotated[bool, Parameter(negative="")] = False) -> int:
    """Print the hardware table with ridge points; with a name, one device and the origin of its figures.

    Parameters
    ----------
    name
        A device, such as H200 or 'EPYC 9654'.
    json
        Print every figure with unit, density, source and confidence as JSON.
    """
    found = [find_named(name)] if name is not None else list(devices())
    if json:
        sys.stdout.write(encode(_document(found)))
    else:
        width = min(shutil.get_terminal_size((110, 24)).columns, 110)
        print(portrait(found[0], width) if name is not None else listing(found, width))
    print(f"\nNext    {'topout hardware H200' if name is None else 'topout doctor'}", file=sys.stderr)
    return ExitCode.FINE


def _document(found: list[Device]) -> dict[str, Any]:
    used = {figure.source for device in found for figure in device.figures.values()}
    return {
        "version": HARDWARE_VERSION,
        "sources": {key: asdict(source) for key, source in sources().items() if key in used},
        "devices": [{**asdict(device), "ridge_flops_per_byte": ridges(device)} for device in found],
    }
