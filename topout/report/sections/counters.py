"""What was sampled beside the training: small charts of processors, memory, files, network and GPU.

Not for the verdict, which rests on the steps; these say why a phase may be slow.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from topout.report import figures, svg
from topout.report.escape import text
from topout.report.sections.frame import obtained, section
from topout.report.svg import Floats

if TYPE_CHECKING:
    from topout.analyze.series import Series

MOST_LINES = 4
"""Up to so many ranks get a line each; more become a band from the lowest to the highest, with their mean."""
MOST_POINTS = 120


@dataclass(frozen=True)
class Panel:
    """One counter: how it is called, scaled and written."""

    title: str
    show: Callable[[float | None], str]
    scale: float = 1.0
    is_of_host: bool = False


def _per_second(show: Callable[[float | None], str]) -> Callable[[float | None], str]:
    return lambda value: f"{show(value)}/s"


def _unit(name: str) -> Callable[[float | None], str]:
    return lambda value: f"{figures.amount(value)}\u202f{name}"


def _cores(value: float | None) -> str:
    return f"{value:.2f} cores" if value is not None else figures.NOT_MEASURED


PANELS = {
    "cpu_ns": Panel("CPU, rank", _cores, 1e-9),
    "worker_cpu_ns": Panel("CPU, loader workers", _cores, 1e-9),
    "system_ns": Panel("CPU in the kernel, rank", _cores, 1e-9),
    "worker_system_ns": Panel("CPU in the kernel, workers", _cores, 1e-9),
    "page_faults": Panel("Page faults, rank", _per_second(figures.amount)),
    "gpu_busy_percent": Panel("GPU busy", _unit("%")),
    "device_allocated_bytes": Panel("GPU memory, torch", figures.size),
    "gpu_memory_bytes": Panel("GPU memory", figures.size),
    "gpu_power_watts": Panel("GPU power", _unit("W")),
    "gpu_clock_mhz": Panel("GPU clock", _unit("MHz")),
    "resident_bytes": Panel("Memory, rank", figures.size),
    "worker_resident_bytes": Panel("Memory, loader workers", figures.size),
    "host_available_bytes": Panel("Memory free on host", figures.size, is_of_host=True),
    "feed_samples": Panel("Samples from the loader", _per_second(figures.amount)),
    "feed_bytes": Panel("Bytes from the loader", _per_second(figures.size)),
    "feed_wait_ns": Panel("Waiting for the loader", figures.share, 1e-9),
    "feed_skipped": Panel("Samples skipped by the loader", _per_second(figures.amount)),
    "feed_queue_depth": Panel("Batches ready in the loader", figures.amount),
    "read_bytes": Panel("Read by system calls", _per_second(figures.size)),
    "write_bytes": Panel("Written by system calls", _per_second(figures.size)),
    "read_calls": Panel("Read calls", _per_second(figures.amount)),
    "write_calls": Panel("Write calls", _per_second(figures.amount)),
    "file_opens": Panel("Files opened", _per_second(figures.amount)),
    "directory_scans": Panel("Directory scans", _per_second(figures.amount)),
    "storage_read_bytes": Panel("Read from storage", _per_second(figures.size)),
    "storage_write_bytes": Panel("Written to storage", _per_second(figures.size)),
    "disk_read_bytes": Panel("Disks of host, read", _per_second(figures.size), is_of_host=True),
    "disk_write_bytes": Panel("Disks of host, written", _per_second(figures.size), is_of_host=True),
    "network_received_bytes": Panel("Network of host, received", _per_second(figures.size), is_of_host=True),
    "network_sent_bytes": Panel("Network of host, sent", _per_second(figures.size), is_of_host=True),
}
_SHOWN_ELSEWHERE = ("input_samples_", "noise_scale_")
"""States of loader workers are evidence for the verdict; as curves they say nothing. The noise scale has a section."""


def counters(series: "Series") -> str:
    names = {name for rank in series.counters for name in rank if not name.startswith(_SHOWN_ELSEWHERE)}
    order = {name: place for place, name in enumerate(PANELS)}
    charts, flat = [], []
    for name in sorted(names, key=lambda name: (order.get(_plain(name), len(order)), name)):
        panel = PANELS.get(_plain(name)) or Panel(name, figures.amount)
        lines = _lines(series, name, panel)
        if any(values.any() for _, values in lines):
            charts.append(_chart(panel, lines))
        elif lines:
            flat.append(text(panel.title))
    if not charts:
        return ""
    caption = f'<p class="caption">At zero throughout: {"; ".join(flat)}.</p>' if flat else ""
    caption = _key(series) + caption
    note = f"Sampled about once a second; 0 s is where the measured steps begin. {obtained('measured')}"
    return section("counters", "Counters", note, f'<div class="multiples">{"".join(charts)}</div>{caption}')


def _key(series: "Series") -> str:
    if len(series.ranks) > MOST_LINES:
        return '<p class="caption">Line: mean over ranks. Band: from the lowest to the highest of them.</p>'
    items = "".join(f'<li><i class="line-{index}"></i>rank {rank}</li>' for index, rank in enumerate(series.ranks))
    return f'<ul class="legend">{items}<li>beside a title: the mean; at the upper edge: the most</li></ul>'


def _second(value: float) -> str:
    return f"{value:.0f}\u202fs".replace("-", "−")


def _plain(name: str) -> str:
    """The recorder's name of a counter that the analysis turned into a rate."""
    return name.removesuffix("_per_s")


def _lines(series: "Series", name: str, panel: Panel) -> list[tuple[Floats, Floats]]:
    """One line a rank; of what belongs to a host, one line a host."""
    seen_hosts: set[str] = set()
    lines = []
    for host, rank in zip(series.hosts, series.counters, strict=True):
        if name not in rank or (panel.is_of_host and host in seen_hosts):
            continue
        seen_hosts.add(host)
        times_s, values = (np.asarray(column, dtype=np.float64) for column in rank[name])
        is_known = np.isfinite(times_s) & np.isfinite(values)
        if is_known.sum() >= 2:
            lines.append((times_s[is_known], values[is_known] * panel.scale))
    return lines


def _chart(panel: Panel, lines: list[tuple[Floats, Floats]]) -> str:
    first = min(float(times[0]) for times, _ in lines)
    last = max(float(times[-1]) for times, _ in lines)
    span = max(last - first, 1e-9)
    top = max(float(values.max()) for _, values in lines)
    top = top if top > 0 else 1.0
    mean = float(np.mean([values.mean() for _, values in lines]))
    if len(lines) <= MOST_LINES:
        drawn = ""
        for index, (times, values) in enumerate(lines):
            x, y = svg.thin((times - first) / span, np.clip(values / top, 0, 1), MOST_POINTS)
            drawn += f'<path class="line line-{index}" d="{svg.line(x, y)}"/>'
    else:
        grid = np.linspace(first, last, MOST_POINTS)
        stack = np.clip(np.stack([np.interp(grid, times, values) for times, values in lines]) / top, 0, 1)
        x = (grid - first) / span
        drawn = f'<path class="band" d="{svg.band(x, stack.min(axis=0), stack.max(axis=0))}"/>'
        drawn += f'<path class="line" d="{svg.line(x, stack.mean(axis=0))}"/>'
    title = text(panel.title)
    plot = svg.box(drawn, attributes=f'role="img" aria-label="{title}, mean {text(panel.show(mean))}"')
    return (
        f'<figure class="chart small"><figcaption>{title}<b>{panel.show(mean)}</b></figcaption>'
        f'<div class="area">{plot}<span class="top">{panel.show(top)}</span></div>'
        f'<div class="axis"><span>{_second(first)}</span><span>{_second(last)}</span></div></figure>'
    )
