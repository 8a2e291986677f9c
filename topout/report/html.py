"""One HTML file a run: the verdict first, then what it rests on, readable offline on any machine.

The page asks the network for nothing and may not: its content security policy forbids every request, and allows the one
script by its hash, so that a name smuggled in with a run cannot become code. Not the place for numbers of its own:
whatever it shows stands in `analysis.json` or in the recording.
"""

import base64
import hashlib
import json
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topout import __version__
from topout.report.escape import text
from topout.report.sections.advice import findings
from topout.report.sections.breakdown import waterfall, where_time_goes
from topout.report.sections.counters import counters
from topout.report.sections.efficiency import efficiency
from topout.report.sections.noise_scale import noise_scale
from topout.report.sections.opening import key_figures, masthead, verdict
from topout.report.sections.pipeline import pipeline
from topout.report.sections.setting import environment, not_measured, provenance
from topout.report.sections.spans import spans
from topout.report.sections.steps import steps
from topout.report.sections.timeline import timeline
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
        body += [timeline(series, analysis.verdict), steps(series), spans(series), counters(series)]
    body += [noise_scale(analysis.measures)]
    body += [environment(analysis, run), not_measured(analysis, run, has_steps=has_steps)]
    content = "\n".join(part for part in body if part)
    script = "\n".join(_asset(name) for name in SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="topout {__version__}">
<title>{text(analysis.script)} – topout</title>
<link rel="icon" href="data:,">
<style>
{_asset("page.css")}</style>
</head>
<body>
<div class="topline"><span>topout <i>report</i></span><button type="button" id="theme" hidden>Dark</button></div>
<header class="masthead">{masthead(analysis, run)}</header>
<main>
{verdict(analysis, run)}
{content}
</main>
<footer>{provenance(analysis)}<p>{text(analysis.run)} · topout {__version__} · this page holds all its data</p></footer>
<div id="tooltip" role="status" hidden></div>
<script>{script}</script>
</body>
</html>
"""


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


def _asset(name: str) -> str:
    return (files("topout.report") / "page" / name).read_text(encoding="utf-8")
