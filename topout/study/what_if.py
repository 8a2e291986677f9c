"""Changes to a description: another value, another batch, another device, some slow ranks.

`input.samples=128` is another batch of a rank: forward and backward take as much longer as there are more samples, or
somewhat less, for larger batches compute more efficiently (the ratio to the power of 0.9 is the other end of the
range). `gradients.bucket_bytes=25e6` is the size of a group instead of their number, as DDP has it, and
`checkpoint.every_steps=1000` counts steps where a calibrated job counts samples.

A device is swapped by the hardware table: a step cannot gain more than the ratio of arithmetic or that of memory
bandwidth, whichever is larger, nor less than the smaller; the two are the range, their geometric mean the value.
"""

from dataclasses import fields, replace
from math import ceil, inf

from topout.schema.errors import TopoutError
from topout.schema.hardware import Device, devices, find_row
from topout.study.description import MOST_GROUPS, Ranged, change
from topout.study.devices import time_ratios
from topout.study.job import Job
from topout.study.simulate import Slow
from topout.study.system import System

EFFICIENT = 0.9
"""Time grows with the batch by this power where kernels were too small to fill a device."""

MOST_SLOW = 1_000_000
"""Times as long: a rank that takes longer has failed."""


def apply(assignment: str, job: Ranged[Job], system: Ranged[System]) -> tuple[Ranged[Job], Ranged[System]]:
    """`input.source=shared` changes the job, `between.bytes_per_s=25e9` the system."""
    name, _, text = assignment.partition("=")
    if name.strip() == "gradients.bucket_bytes":
        return change(job, f"gradients.groups={_groups(text, job.value, assignment)}"), system
    if name.strip() == "input.samples":
        return with_batch(job, change(job, assignment).value.input.samples), system
    first, _, last = name.strip().partition(".")
    if last == "every_steps":
        # else samples would go on counting in its place
        return change(change(job, assignment), f"{first}.every_samples=0"), system
    if first in {entry.name for entry in fields(System)} - {"title", "source", "device"}:
        return job, change(system, assignment)
    return change(job, assignment), system


def with_batch(job: Ranged[Job], samples: int) -> Ranged[Job]:
    """The same job with another batch of a rank."""
    ratio = samples / job.value.input.samples
    edges = sorted((ratio, ratio**EFFICIENT))
    compute, ranges = job.value.compute, dict(job.ranges)
    scaled = {}
    for part in ("forward_s", "backward_s"):
        value = getattr(compute, part)
        low, high = ranges.get(("compute", part), (value, value))
        scaled[part] = value * ratio
        if ratio != 1:
            ranges["compute", part] = (low * edges[0], high * edges[1])
    inside = replace(job.value.input, samples=samples)
    return Ranged(replace(job.value, compute=replace(compute, **scaled), input=inside), ranges)


def _groups(text: str, job: Job, assignment: str) -> int:
    try:
        size = float(text)
        if not 0 < size < inf:
            raise ValueError(text)
    except ValueError:
        raise TopoutError(
            f"{assignment!r} is no size.", why="It is bytes above 0.", do="--what-if gradients.bucket_bytes=25e6"
        ) from None
    groups = job.gradients.bytes / size
    if groups > MOST_GROUPS:
        raise TopoutError(
            f"{assignment!r} makes {groups:,.0f} groups of gradients.",
            why=f"There are at most {MOST_GROUPS:,}. The unit is bytes: 25 MB is 25e6.",
            do="--what-if gradients.bucket_bytes=25e6",
        )
    return max(1, ceil(groups))


def on_device(job: Ranged[Job], name: str, precision: str = "bf16") -> Ranged[Job]:
    """The same job on another device of the table."""
    if not job.value.device:
        raise TopoutError(
            "The job does not say what it was measured on.",
            why="A swap needs both devices, and its `device` is empty.",
            do="write there what it was measured on, as `topout hardware` names it",
        )
    old, new = _row(job.value.device), find_device(name)
    if old is None:
        raise TopoutError(
            f"The job's seconds cannot be scaled to {new.name}.",
            why=f"It was measured on {job.value.device!r}, which the hardware table does not have.",
            do=f"calibrate a run on {new.name}, or write into the job's `device` a name of `topout hardware`",
        )
    found = time_ratios(old, new, precision)
    if found is None:
        raise TopoutError(
            f"{old.name} and {new.name} cannot be compared.",
            why="The hardware table lacks a rate or the memory bandwidth of one of them.",
            do="topout hardware",
        )
    ratios = sorted(found)
    middle = (ratios[0] * ratios[1]) ** 0.5
    compute, ranges = job.value.compute, dict(job.ranges)
    scaled = {}
    for part in ("forward_s", "backward_s", "optimizer_s"):
        value = getattr(compute, part)
        low, high = ranges.get(("compute", part), (value, value))
        scaled[part] = value * middle
        if high:
            ranges["compute", part] = (low * ratios[0], high * ratios[1])
    return Ranged(replace(job.value, device=new.name, compute=replace(compute, **scaled)), ranges)


def find_device(name: str) -> Device:
    found = _row(name)
    if found is None:
        raise TopoutError(f"No device {name!r}.", why="The hardware table does not have it.", do="topout hardware")
    return found


def _row(name: str) -> Device | None:
    return next((device for device in devices() if device.name.lower() == name.lower()), None) or find_row(name)


def slow_ranks(text: str) -> Slow:
    """`3x1.5`: three ranks take one and a half times as long."""
    ranks, is_given, factor = text.partition("x")
    try:
        if not is_given or not 1 <= float(factor) <= MOST_SLOW or int(ranks) < 1:
            raise ValueError(text)
        return Slow(int(ranks), float(factor))
    except ValueError:
        raise TopoutError(
            f"{text!r} slows nobody down.",
            why=f"It is RANKSxFACTOR, the factor between 1 and {MOST_SLOW:,}.",
            do="--slow 1x1.5",
        ) from None
