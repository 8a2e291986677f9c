"""The results as markdown: medians, ratios to the limit of the same run, and who is missing and why."""

import os
import platform
import statistics
from datetime import date
from pathlib import Path

from feed_peers.environments import environments
from feed_peers.measure import CORES

LIMITS = {
    "jpeg": "limit: libjpeg-turbo, full decode, 2 threads",
    "records": "limit: memory-map gather",
    "blobs": "limit: sequential read",
    "packing": "limit: files into one file, 2 threads",
    "open": None,
}


def rate(result):
    return result["samples"] / result["wall_s"]


def cpu_rate(result):
    return CORES * result["samples"] / max(result["cpu_s"], 1e-9)


def median(results, measure):
    return statistics.median(measure(result) for result in results)


def whole(results):
    return [result for result in results if "failed" not in result]


def sorted_rows(results, measure, descending=True):
    measured = {name: whole(runs) for name, runs in results.items() if whole(runs)}
    return sorted(measured.items(), key=lambda row: median(row[1], measure), reverse=descending)


def failures(results):
    lines = [f"- {name}: {runs[-1]['failed']}" for name, runs in results.items() if not whole(runs)]
    partly = [
        f"- {name}: {len(runs) - len(whole(runs))} of {len(runs)} runs failed, left out: "
        + next(run["failed"] for run in runs if "failed" in run)
        for name, runs in results.items()
        if whole(runs) and len(whole(runs)) < len(runs)
    ]
    return (["", "Missing:", "", *lines, *partly] if lines or partly else []) + [""]


def rate_table(case, results, notes, quality=None, limit=None):
    """Rates of one case; `results` by name, `limit` the runs of its limit where it is not among them."""
    limit = limit or whole(results.get(LIMITS[case], []))
    has_bytes = case in ("blobs", "packing")
    head = ["", "samples/s (best)", "per CPU-s x 2", "of the limit", "of it by CPU", "peak RSS MB (anonymous)"]
    head += ["GB/s"] if has_bytes else []
    head += ["first batch s"] if case != "packing" else []
    head += ["difference to PIL (99.9 %)"] if quality is not None else []
    lines = [row([*head, "note"]), row(["---"] * (len(head) + 1))]
    for name, runs in sorted_rows(results, rate):
        cells = [name, f"{median(runs, rate):,.0f} ({max(map(rate, runs)):,.0f})", f"{median(runs, cpu_rate):,.0f}"]
        cells += [f"{median(runs, of) / median(limit, of):.3f}" if limit else "not measured" for of in (rate, cpu_rate)]
        cells.append(memory(runs))
        if has_bytes:
            cells.append(f"{median(runs, lambda run: run['bytes'] / run['wall_s']) / 1e9:.2f}")
        if case != "packing":
            cells.append(f"{median(runs, lambda run: run['first_batch_s']):.3f}")
        if quality is not None:
            cells.append(difference(quality.get(name)))
        is_cut = any(run["is_cut"] for run in runs)
        cells.append("; ".join(filter(None, [notes.get(name, ""), "cut short" if is_cut else ""])))
        lines.append(row(cells))
    return "\n".join([*lines, *failures(results)])


def open_table(results, notes):
    head = ["", "first batch s (slowest)", "of which opening s", "peak RSS MB (anonymous)", "note"]
    lines = [row(head), row(["---"] * len(head))]
    for name, runs in sorted_rows(results, lambda run: run["first_batch_s"], descending=False):
        slowest = max(run["first_batch_s"] for run in runs)
        first = f"{median(runs, lambda run: run['first_batch_s']):.3f} ({slowest:.3f})"
        opening = f"{median(runs, lambda run: run['open_s']):.3f}"
        lines.append(row([name, first, opening, memory(runs), notes.get(name, "")]))
    return "\n".join([*lines, *failures(results)])


def linear_table(by_size):
    """Rates and ratios to the memory map of the same size; `by_size`: size -> results by name."""
    sizes = sorted(by_size)
    names = list(by_size[sizes[0]])
    head = ["", *(f"{size:,} samples/s" for size in sizes), *(f"ratio at {size:,}" for size in sizes), "last / first"]
    lines = [row(head), row(["---"] * len(head))]
    for name in names:
        runs = [whole(by_size[size].get(name, [])) for size in sizes]
        limits = [whole(by_size[size].get(LIMITS["records"], [])) for size in sizes]
        if not all(runs) or not all(limits):
            continue
        rates = [median(run, rate) for run in runs]
        ratios = [value / median(limit, rate) for value, limit in zip(rates, limits, strict=True)]
        cells = [f"{value:,.0f}" for value in rates] + [f"{value:.3f}" for value in ratios]
        lines.append(row([name, *cells, f"{ratios[-1] / ratios[0]:.2f}"]))
    missing = {name: runs for size in sizes for name, runs in by_size[size].items()}
    return "\n".join([*lines, *failures(missing)])


def memory(runs):
    rss_mb = median(runs, lambda run: run["rss_mb"])
    return f"{rss_mb:,.0f} ({median(runs, lambda run: run['anon_mb']):,.0f})"


def difference(result):
    if not result or "failed" in result:
        return "not measured"
    return f"{result['mean_levels']:.2f} ({result['p999_levels']:.0f})"


def row(cells):
    return f"| {' | '.join(cells)} |"


def machine():
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    model = names[0] if names else platform.machine()
    return f"{os.cpu_count()} cores ({model}), Linux {platform.release()}, Python {platform.python_version()}"


def heading(arguments, loads):
    return (
        f"# Feed: topout and its peers\n{date.today()}; {machine()}; made by `benchmarks/feed.py {arguments}`. "
        f"Load average when runs began: median {statistics.median(loads):.1f}, highest {max(loads):.1f}.\n\n"
        "Every run in a fresh process: imports, then the clock; one warm-up epoch, then the timed ones; rounds "
        "interleaved in random order; medians (best in brackets). Memory is the process tree's peak. Data lie in the "
        "page cache, except for packing, where sources are evicted first and the result is flushed to the disk within "
        "the time.\n\n"
        f"Versions: {', '.join(versions())}; decoding limit: the system's libjpeg-turbo.\n"
    )


def versions():
    """What the peers run, without repetitions."""
    lines = (line for part in environments().values() for line in part.alone + part.bare + part.packages)
    return dict.fromkeys(line.replace("==", " ") for line in lines)
