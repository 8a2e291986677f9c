"""Rooflines of device classes: the table's peaks, what was measured here, and where the job's step stands."""

from collections.abc import Sequence
from dataclasses import dataclass

from topout.cli.local_roofs import LocalRoof
from topout.report import figures
from topout.report.axes import Axis, Chart, Line, Stop
from topout.report.study_page import Content, Passage, Section
from topout.schema.hardware import Device, devices, find_row
from topout.schema.measures import Measures
from topout.study.devices import Fit, Placement, Prices, place_step, rate_for

MOST_ROOFS = 4
"""Devices of a class beside the job's own; more lines cannot be told apart."""
ALIKE = 1.2
LEAST_INTENSITY, MOST_INTENSITY = 0.1, 10_000.0
KINDS = {"gpu": "GPUs", "tpu": "TPUs", "cpu": "Processors, one socket"}
_NOTE = (
    "Below the slope memory holds a kernel back, below the level part arithmetic. Solid: the table’s peaks. Dashed, "
    "with dots for single kernels: what `topout doctor` measured here."
)


@dataclass(frozen=True, kw_only=True)
class Ranking:
    run: str
    measures: Measures
    precision: str
    fits: Sequence[Fit]
    prices: Prices | None = None
    local: Sequence[LocalRoof] = ()


def rooflines(found: Ranking) -> list[Section]:
    """One a class of devices that has any to show, the job's own first."""
    environment = found.measures.environment
    own = find_row(environment.device_name or "")
    own_kind = own.kind if own is not None else "gpu" if environment.device_name else "cpu"
    sections = []
    for kind, title in sorted(KINDS.items(), key=lambda item: item[0] != own_kind):
        local = [roof for roof in found.local if roof.kind == kind]
        placed = _placement(found, own, local) if kind == own_kind else None
        chart = _roofline(found, kind, own, local, placed)
        if chart is not None:
            content: list[Content] = [chart]
            if kind == own_kind:
                content.append(Passage(sentences=_placed_words(found, placed)))
            sections.append(
                Section(key=f"roofline-{kind}", title=f"Roofline: {title}", how="assumed", content=content, note=_NOTE)
            )
    return sections


def _shown(found: Ranking, kind: str, own: Device | None, local: Sequence[LocalRoof]) -> list[Device]:
    """The job's own device and the best of its class; of processors those that are known to be here, or the fastest."""
    if kind == "cpu" and not local and found.measures.environment.device_name:
        return []
    best = {fit.device: place for place, fit in enumerate(found.fits)}
    of_kind = [device for device in devices() if device.kind == kind and "memory_bandwidth" in device.figures]
    known = [
        device for device in of_kind if rate_for(device, found.precision) and (device.name in best or kind == "cpu")
    ]
    known.sort(key=lambda device: (best.get(device.name, 0), -_peak(device, found.precision)))
    shown = [own] if own is not None and own in known else []
    for device in known:
        if len(shown) < MOST_ROOFS + 1 and not any(_looks_like(device, other, found.precision) for other in shown):
            shown.append(device)
    return shown


def _looks_like(one: Device, other: Device, precision: str) -> bool:
    """Two roofs that nobody could tell apart in the chart."""
    pairs = [[_peak(device, precision) for device in (one, other)],
             [device.figures["memory_bandwidth"].value for device in (one, other)]]  # fmt: skip
    return all(max(pair) < ALIKE * min(pair) for pair in pairs)


def _peak(device: Device, precision: str) -> float:
    rate = rate_for(device, precision)
    return rate[1].value if rate else 0.0


def _placement(found: Ranking, own: Device | None, local: Sequence[LocalRoof]) -> Placement | None:
    if own is not None and "memory_bandwidth" in own.figures:
        return place_step(found.measures, own.figures["memory_bandwidth"].value)
    return place_step(found.measures, max((roof.bytes_per_s for roof in local), default=None))


def _roofline(
    found: Ranking, kind: str, own: Device | None, local: Sequence[LocalRoof], placed: Placement | None
) -> Chart | None:
    shown = _shown(found, kind, own, local)
    if not shown and not local:
        return None
    lines, stops = [], []
    for number, device in enumerate(shown):
        rate = rate_for(device, found.precision)
        assert rate is not None
        name = device.name if rate[0] == found.precision else f"{device.name} ({rate[0]})"
        bandwidth = device.figures["memory_bandwidth"].value
        lines.append(_roof(name, rate[1].value, bandwidth, "roof" if device is own else f"roof-{number % 5}"))
        stops.append(_corner(name, rate[1].value, bandwidth))
    for roof in local:
        lines.append(_roof(f"measured on {roof.host}, {roof.dtype}", roof.flops_per_s, roof.bytes_per_s, "local"))
        stops.append(_corner(f"measured on {roof.host}", roof.flops_per_s, roof.bytes_per_s))
        kernels = [kernel for kernel in roof.kernels if LEAST_INTENSITY <= kernel.intensity <= MOST_INTENSITY]
        if kernels:
            lines.append(
                Line(name="kernels measured there", look="local", has_dots=True, has_line=False,
                     x=[kernel.intensity for kernel in kernels], y=[kernel.flops_per_s for kernel in kernels])
            )  # fmt: skip
            stops += [
                Stop(
                    x=kernel.intensity,
                    y=kernel.flops_per_s,
                    words=[kernel.name, _flops(kernel.flops_per_s), f"{kernel.intensity:.3g} FLOP/byte"],
                )
                for kernel in kernels
            ]
    if placed is not None:
        ends = (placed.least_intensity or LEAST_INTENSITY, placed.most_intensity or MOST_INTENSITY)
        ends = (max(ends[0], LEAST_INTENSITY), min(max(ends), MOST_INTENSITY))
        lines.append(Line(name="this job’s step", look="job", x=ends, y=[placed.flops_per_s] * 2, has_dots=True))
        stops.append(
            Stop(x=(ends[0] * ends[1]) ** 0.5, y=placed.flops_per_s, words=["this job", _flops(placed.flops_per_s)])
        )
    return Chart(
        spoken=f"Roofline of {KINDS[kind]}: "
        + "; ".join(f"{line.name} up to {_flops(max(line.y))}" for line in lines),
        x=Axis(title="FLOP/byte", show=lambda value: f"{value:,.10g}", is_log=True, low=LEAST_INTENSITY,
               high=MOST_INTENSITY, ticks=(0.1, 1, 10, 100, 1000, 10_000)),
        y=Axis(title="FLOP/s of one device", show=lambda value: f"{figures.amount(value)}", is_log=True),
        lines=lines,
        stops=stops,
    )  # fmt: skip


def _roof(name: str, flops_per_s: float, bytes_per_s: float, look: str) -> Line:
    ridge = min(max(flops_per_s / bytes_per_s, LEAST_INTENSITY), MOST_INTENSITY)
    x = (LEAST_INTENSITY, ridge, MOST_INTENSITY)
    return Line(name=name, look=look, x=x, y=[min(flops_per_s, bytes_per_s * at) for at in x])


def _corner(name: str, flops_per_s: float, bytes_per_s: float) -> Stop:
    ridge = flops_per_s / bytes_per_s
    words = [name, f"{_flops(flops_per_s)}, {figures.amount(bytes_per_s)}B/s", f"ridge {ridge:.3g} FLOP/byte"]
    return Stop(x=min(max(ridge, LEAST_INTENSITY), MOST_INTENSITY), y=flops_per_s, words=words)


def _flops(value: float) -> str:
    return f"{figures.amount(value)}FLOP/s"


def _placed_words(found: Ranking, placed: Placement | None) -> list[str]:
    if placed is None:
        return ["The run counted no operations of a step, so the job has no place in the chart: record one whose "
                "backward topout can follow (docs/recording.md)."]  # fmt: skip
    least, most = placed.least_intensity, placed.most_intensity
    ends = figures.amount(least) if least else "an unknown intensity"
    ends += f" to {figures.amount(most)} FLOP/byte" if most else " FLOP/byte upwards" if least else " upwards"
    why = ["it cannot have moved more than memory could in that time"] if least else []
    why += ["it moved its weights, gradients and optimizer state at least"] if most else []
    words = [
        f"A rank did {_flops(placed.flops_per_s)} while it computed, {figures.amount(placed.flops)}FLOP a step. The "
        f"run counted operations, not bytes, so the step lies somewhere on its line, from {ends}"
        + (f": {', and '.join(why)}." if why else ".")
    ]
    share = found.measures.compute.memory_bound_share
    if share is not None:
        words.append(f"By the profile, {share:.0%} of the computing time is in kernels that stream through memory.")
    else:
        words.append("`topout run --profile 20-29` tells which part of the computing streams through memory.")
    return words
