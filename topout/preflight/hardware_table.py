"""The hardware table as text: all devices with their ridge points, or one device with the origin of every figure.

Not what this machine reaches; `topout doctor` measures that and compares.
"""

import textwrap
from collections.abc import Sequence
from difflib import get_close_matches

from topout.schema.errors import TopoutError
from topout.schema.hardware import PRECISIONS, Device, Figure, devices, find_row, sources

_MARKS = {"read": " ", "computed": "~", "recalled": "?", "disputed": "?"}
_NOTHING = "–"
_LEGEND = (
    "Dense peaks in TFLOP/s (INT8: TOP/s), memory in GB and GB/s, PCIe (one direction) and link (both) in GB/s; ridge "
    "point in FLOP/byte: below it memory holds back, above it arithmetic. ~ computed, ? recalled or disputed, no mark: "
    "read in a source."
)
_COLUMNS = (
    ("FP64", 6), ("FP32", 6), ("TF32", 6), ("16-bit", 6), ("INT8", 6), ("memory", 6), ("GB/s", 6), ("PCIe", 5),
    ("link", 6), ("FP64", 5), ("FP32", 5), ("16-bit", 6), ("INT8", 5),
)  # fmt: skip
_NAME_WIDTH = 22


def find_named(name: str) -> Device:
    """The device a person means: its name in the table, what torch calls it, or a part of its name that is unique."""
    wanted = name.lower()
    exact = next((device for device in devices() if device.name.lower() == wanted), None)
    parts = [device for device in devices() if wanted in f"{device.name} {device.full_name}".lower()]
    found = exact or find_row(name) or (parts[0] if len(parts) == 1 else None)
    if found is not None:
        return found
    names = [device.name for device in devices()]
    near = [device.name for device in parts] or get_close_matches(name, names, n=3, cutoff=0.4)
    raise TopoutError(
        f"The hardware table has no {name!r}." if not parts else f"{name!r} fits {len(parts)} devices of the table.",
        why=f"it has {len(names)} devices, none of them called so" if not parts else f"{', '.join(near)}",
        do=f"topout hardware '{near[0]}'" if near else "topout hardware   lists them",
    )


def listing(rows: Sequence[Device], width: int) -> str:
    lines = textwrap.wrap(_LEGEND, width)
    lines += ["", f"{'':{_NAME_WIDTH + 67}}ridge point", f"{'device':{_NAME_WIDTH}}" + _header()]
    for kind, title in (("gpu", "GPUs"), ("tpu", "TPUs"), ("cpu", "CPUs, one socket")):
        inside = [device for device in rows if device.kind == kind]
        if inside:
            lines += [title, *(_row(device) for device in inside)]
    return "\n".join(lines)


def portrait(device: Device, width: int) -> str:
    """One device: every figure with unit, density, ridge point, confidence and source."""
    used = list(dict.fromkeys(figure.source for figure in device.figures.values()))
    lines = [f"{device.name}  {device.full_name}, {device.maker}, {device.year}"]
    lines += [f"  per {device.per}"] if device.per else []
    lines += textwrap.wrap(device.note, width, initial_indent="  ", subsequent_indent="  ") if device.note else []
    lines += ["", f"  {'figure':<21}{'value':>16}  {'density':<8}{'ridge':>7}  {'confidence':<11}source"]
    for key, figure in device.figures.items():
        ridge = _ridge_of(device, key, figure)
        lines.append(
            f"  {key.replace('_', ' '):<21}{figure_text(figure):>16}  {figure.density or '':<8}{ridge:>7}  "
            f"{figure.confidence:<11}[{used.index(figure.source) + 1}]"
        )
        if figure.note:
            lines += textwrap.wrap(figure.note, width, initial_indent=" " * 23, subsequent_indent=" " * 23)
    lines += ["", "  ridge: FLOP/byte at the figure's rate and the device's memory bandwidth", ""]
    for number, key in enumerate(used, 1):
        source = sources()[key]
        lines += textwrap.wrap(f"[{number}] {source.title}", width, initial_indent="  ", subsequent_indent="      ")
        lines += [f"      {source.address}"] if source.address else []
    return "\n".join(lines)


def figure_text(figure: Figure) -> str:
    """`989 TFLOP/s`, `141 GB`, `4,800 GB/s`."""
    scale, prefix = (1e12, "T") if figure.unit in ("FLOP/s", "OP/s") else (1e9, "G")
    return f"{_number(figure.value / scale)} {prefix}{figure.unit}"


def ridges(device: Device) -> dict[str, float]:
    found = {precision: device.ridge_flops_per_byte(precision) for precision in PRECISIONS}
    return {precision: ridge for precision, ridge in found.items() if ridge is not None}


def _ridge_of(device: Device, key: str, figure: Figure) -> str:
    bandwidth = device.figures.get("memory_bandwidth")
    is_rate = figure.density == "dense"
    return _number(figure.value / bandwidth.value) if bandwidth and is_rate else ""


def _header() -> str:
    return "".join(f"{title:>{width}} " for title, width in _COLUMNS).rstrip()


def _row(device: Device) -> str:
    half = _faster(device.rate("bf16"), device.rate("fp16"))
    rates = [device.rate("fp64"), device.rate("fp32"), device.rate("tf32"), half, device.rate("int8")]
    cells = [_cell(rate, 1e12) for rate in rates]
    memory = device.figures.get("memory")
    cells.append(f"{memory.value / 1e9:,.0f}{_MARKS[memory.confidence]}" if memory else f"{_NOTHING} ")
    cells += [_cell(device.figures.get(key), 1e9) for key in ("memory_bandwidth", "pcie", "link")]
    bandwidth = device.figures.get("memory_bandwidth")
    cells += [
        f"{_number(rate.value / bandwidth.value)} " if rate and bandwidth else f"{_NOTHING} "
        for rate in (rates[0], rates[1], half, rates[4])
    ]
    # a cell is one wider than its column: the mark stands in the gap
    return (
        f"  {device.name:{_NAME_WIDTH - 2}}"
        + "".join(f"{cell:>{width + 1}}" for cell, (_, width) in zip(cells, _COLUMNS, strict=True)).rstrip()
    )


def _cell(figure: Figure | None, scale: float) -> str:
    return f"{_NOTHING} " if figure is None else f"{_number(figure.value / scale)}{_MARKS[figure.confidence]}"


def _faster(first: Figure | None, second: Figure | None) -> Figure | None:
    return max((figure for figure in (first, second) if figure), key=lambda figure: figure.value, default=None)


def _number(value: float) -> str:
    """Three digits that matter; whole numbers from 100 on."""
    if value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
