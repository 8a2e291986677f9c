"""What follows a run: analysis.json, report.html, and the verdict as text.

Never raises: a job that trained well must not look failed because its report broke. For the same reason a run whose
recordings might not fit into memory, or would take long, is left to `topout analyze`: the kernel or the scheduler would
kill the launcher, and the job's exit code would be that of a kill. While it explains, the job's hosts stand idle.
"""

import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from topout.schema.near import near
from topout.schema.run_folder import RunFolder

_BYTES_NEEDED = 6
"""Memory that explaining may take, for each byte of recordings: about 3 in most runs, 10 in those that hold nothing but
steps. At most half of the free memory is planned with, so both kinds fit."""
_BYTES_PER_S = 25e6
"""Recordings that are explained in a second, see `benchmarks/reading.py`."""
_LONGEST_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Finished:
    """What there is to print."""

    text: str
    """Ends with the next useful command."""
    json_text: str | None = None
    """None when the run could not be analysed."""


def finish(folder: RunFolder) -> Finished:
    try:
        return _left_alone(folder) or _finish(folder)
    except Exception as error:
        problem = f"topout: the run has ended, but could not be explained ({type(error).__name__}: {error})"
        return Finished(text=f"{problem}\nNext    {_analyze(folder)}")


def leave_to_later(folder: RunFolder) -> Finished:
    """Of a job that was asked to stop and is to go on."""
    problem = "topout: the job stopped to be started again, which does not wait for a report of this run"
    return Finished(text=f"{problem}\nNext    {_analyze(folder)}")


def _finish(folder: RunFolder) -> Finished:
    from topout.recommend.explain import explain_run
    from topout.report import html, json_report, text

    analysis = explain_run(folder)
    problems, report = [], None
    try:
        json_report.write(analysis, folder)
        report = Path(near(html.write(analysis, folder)))
    except Exception as error:
        # the verdict can still be read on the terminal
        problems.append(f"topout: no report in {near(folder.path)}: {error}\n")
    page = text.render(analysis, width=_width(), color=_wants_color(), report=report)
    return Finished(text="".join([*problems, page]).rstrip("\n"), json_text=json_report.to_json(analysis))


def _left_alone(folder: RunFolder) -> Finished | None:
    """None unless the run is too large for this host, or for the end of a job."""
    recorded = [path for pattern in ("rank-*.events", "rank-*.counters") for path in folder.path.glob(pattern)]
    num_bytes = sum(path.stat().st_size for path in recorded)
    needed, free, needed_s = _BYTES_NEEDED * num_bytes, _free_bytes(), num_bytes / _BYTES_PER_S
    where = ""
    if needed > free / 2:
        takes = f"{needed / 1e9:,.1f} GB of memory, more than half of the {free / 1e9:,.1f} GB that are free"
        where = "   on a host with more memory"
    elif needed_s > _LONGEST_S:
        takes = f"{needed_s / 60:,.0f} min, in which the job would not end"
    else:
        return None
    size = f"its {num_bytes / 1e9:,.1f} GB of recordings may take"
    problem = f"topout: the run is too large to be explained here: {size} {takes}"
    return Finished(text=f"{problem}\nNext    {_analyze(folder)}{where}")


def _analyze(folder: RunFolder) -> str:
    return f"topout analyze {shlex.quote(near(folder.path))}"


def _free_bytes() -> int:
    """Of what the kernel and the control groups above this process would give it."""
    from topout.host.kernel_files import field_of, read_text
    from topout.host.topology import memory_bytes

    available = field_of(read_text("/proc/meminfo"), "MemAvailable").removesuffix("kB").strip()
    allowed = memory_bytes()
    return min(allowed, int(available) * 1024) if available.isdecimal() else allowed


def _width() -> int:
    return min(shutil.get_terminal_size((100, 24)).columns, 110)


def _wants_color() -> bool:
    """https://no-color.org; the verdict of a run goes to stderr."""
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
