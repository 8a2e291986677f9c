"""One HTML file a run: the verdict first, then what it rests on, readable offline on any machine.

Not the place for numbers of its own: whatever it shows stands in `analysis.json` or in the recording. What every page
has around its content, the policy that forbids requests included, is in `shell`.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topout.report.sections.advice import findings
from topout.report.sections.breakdown import waterfall, where_time_goes
from topout.report.sections.counters import counters
from topout.report.sections.counts import counts
from topout.report.sections.efficiency import efficiency
from topout.report.sections.noise_scale import noise_scale
from topout.report.sections.opening import key_figures, masthead, verdict
from topout.report.sections.pipeline import pipeline
from topout.report.sections.setting import environment, not_measured, provenance
from topout.report.sections.spans import spans
from topout.report.sections.steps import steps
from topout.report.sections.timeline import timeline
from topout.report.shell import whole_page
from topout.schema.analysis import Analysis
from topout.schema.run_folder import RunFolder, write_whole

if TYPE_CHECKING:
    from topout.analyze.series import Series

SCRIPTS = ("page.js", "charts.js", "recording.js", "timeline.js")
MOST_FAILURE_CHARACTERS = 6_000


def render(analysis: Analysis, series: "Series | None", run: dict[str, Any]) -> str:
    """The whole page. Without a series it says so and leaves out what shows single steps."""
    has_steps = series is not None and series.duration_ns.size > 0
    body = [key_figures(analysis), where_time_goes(analysis.measures), waterfall(analysis.measures)]
    body += [pipeline(analysis.measures), efficiency(analysis.measures), findings(analysis)]
    if series is not None:
        body += [timeline(series, analysis.verdict), steps(series), spans(series)]
    body += [counts(analysis.measures)]
    if series is not None:
        body += [counters(series)]
    body += [noise_scale(analysis.measures)]
    body += [environment(analysis, run), not_measured(analysis, run, has_steps=has_steps)]
    content = "\n".join(part for part in body if part)
    return whole_page(
        kind="report",
        title=analysis.script,
        masthead=masthead(analysis, run),
        main=f"{verdict(analysis, run)}\n{content}",
        footer=provenance(analysis),
        origin=analysis.run,
        scripts=SCRIPTS,
    )


def write(analysis: Analysis, folder: RunFolder) -> Path:
    """Writes `report.html` into the run folder, whole or not at all."""
    run = _run_of(folder)
    series: Series | None = None
    try:
        from topout.analyze.series import load_series

        series = load_series(folder)
    except Exception as error:
        # a recording that cannot be read costs its panels, never the report
        run["unreadable"] = getattr(error, "problem", None) or f"{type(error).__name__}: {error}"
    write_whole(folder.report_html, render(analysis, series, run))
    return folder.report_html


def _run_of(folder: RunFolder) -> dict[str, Any]:
    try:
        run = json.loads(folder.run_json.read_text())
    except (OSError, ValueError):
        run = {}
    run = dict(run) if isinstance(run, dict) else {}
    if folder.first_failure.is_file():
        # the end of a traceback names the error
        run["first_failure"] = folder.first_failure.read_text(errors="replace")[-MOST_FAILURE_CHARACTERS:]
    return run
