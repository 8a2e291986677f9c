"""Changes to a description: another value, another device, some slow ranks.

A device is swapped by the hardware table: a step cannot gain more than the ratio of arithmetic or that of memory
bandwidth, whichever is larger, nor less than the smaller; the two are the range, their geometric mean the value.
"""

from dataclasses import fields, replace

from topout.schema.errors import TopoutError
from topout.schema.hardware import Device, devices, find_row
from topout.study.description import Ranged, change
from topout.study.job import Job
from topout.study.simulate import Slow
from topout.study.system import System


def apply(assignment: str, job: Ranged[Job], system: Ranged[System]) -> tuple[Ranged[Job], Ranged[System]]:
    """`input.source=shared` changes the job, `between.bytes_per_s=25e9` the system."""
    first = assignment.partition("=")[0].strip().partition(".")[0]
    if first in {entry.name for entry in fields(System)} - {"title", "source", "device"}:
        return job, change(system, assignment)
    return change(job, assignment), system


def on_device(job: Ranged[Job], name: str, precision: str = "bf16") -> Ranged[Job]:
    """The same job on another device of the table."""
    if not job.value.device:
        raise TopoutError(
            "The job does not say what it was measured on.",
            why="A swap needs both devices.",
            do='add device = "V100 SXM2"',
        )
    old, new = find_device(job.value.device), find_device(name)
    ratios = sorted((_rate(old, new, precision), _bandwidth(old, new)))
    middle = (ratios[0] * ratios[1]) ** 0.5
    compute, ranges = job.value.compute, dict(job.ranges)
    scaled = {}
    for part in ("forward_s", "backward_s", "optimizer_s"):
        value = getattr(compute, part)
        scaled[part] = value * middle
        if value:
            ranges["compute", part] = (value * ratios[0], value * ratios[1])
    return Ranged(replace(job.value, device=new.name, compute=replace(compute, **scaled)), ranges)


def find_device(name: str) -> Device:
    found = next((device for device in devices() if device.name.lower() == name.lower()), None) or find_row(name)
    if found is None:
        raise TopoutError(f"No device {name!r}.", why="The hardware table does not have it.", do="topout hardware")
    return found


def _rate(old: Device, new: Device, precision: str) -> float:
    """Time of the new one over that of the old, by arithmetic; each in the fastest precision that it has of those."""
    rates = []
    for device in (old, new):
        figure = next((found for kind in (precision, "fp16", "fp32") if (found := device.rate(kind))), None)
        if figure is None:
            raise TopoutError(f"No rate of {device.name}.", why="The hardware table has none.", do="topout hardware")
        rates.append(figure.value)
    return rates[0] / rates[1]


def _bandwidth(old: Device, new: Device) -> float:
    both = [device.figures.get("memory_bandwidth") for device in (old, new)]
    if both[0] is None or both[1] is None:
        missing = old if both[0] is None else new
        raise TopoutError(f"No bandwidth of {missing.name}.", why="The table has none.", do="topout hardware")
    return both[0].value / both[1].value


def slow_ranks(text: str) -> Slow:
    """`3x1.5`: three ranks take one and a half times as long."""
    ranks, is_given, factor = text.partition("x")
    try:
        if not is_given or float(factor) < 1 or int(ranks) < 1:
            raise ValueError(text)
        return Slow(int(ranks), float(factor))
    except ValueError:
        raise TopoutError(
            f"{text!r} slows nobody down.", why="It is RANKSxFACTOR, the factor 1 or more.", do="--slow 1x1.5"
        ) from None
