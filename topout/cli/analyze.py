"""`topout analyze`: read a run folder again and say what holds the job back.

Not needed after `topout run`, which does the same at its end; it is for runs from elsewhere, runs that were killed, and
after an upgrade.
"""

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from topout.cli.endings import SILENT, ending_of
from topout.cli.kept_runs import newest_run
from topout.recommend.explain import explain_run
from topout.report import json_report, text
from topout.schema.analysis import Analysis
from topout.schema.errors import ExitCode, TopoutError
from topout.schema.measures import ANALYSIS_VERSION
from topout.schema.plain_file import check_plain
from topout.schema.run_folder import TO_READ_NEWER, RunFolder, open_run


def analyze(
    run: Path | None = None,
    /,
    *,
    json: Annotated[bool, Parameter(negative="")] = False,
    html: bool = True,
    force: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Explain a recorded run: verdict, where the time goes, what to do.

    Writes analysis.json and report.html into the run folder and prints a page, or the JSON.

    Parameters
    ----------
    run
        The run folder; the newest under topout-runs (or runs of topout.toml) when left out.
    json
        Print analysis.json instead of the page.
    html
        Write report.html too. Default: yes.
    force
        Replace an analysis that a newer topout wrote.
    """
    folder, _ = open_run(run if run is not None else newest_run())
    if not force:
        _refuse_newer(folder)
    analysis = _with_ending(explain_run(folder), folder)
    report = _write(analysis, folder, html=html)
    if json:
        sys.stdout.write(json_report.to_json(analysis))
        print(f"Next    {text.next_command(analysis)}", file=sys.stderr)
    else:
        width = min(shutil.get_terminal_size((100, 24)).columns, 110)
        sys.stdout.write(text.render(analysis, width=width, color=wants_color(), report=report))
    return ExitCode.FINE


def _with_ending(analysis: Analysis, folder: RunFolder) -> Analysis:
    """Of a run that did not write how it ended, that comes first among what is not known."""
    ending = ending_of(folder, open_run(folder.path)[1])
    if ending.note is None:
        return analysis
    not_measured = (ending.note, *analysis.measures.not_measured)
    status = analysis.status if ending.status == SILENT else ending.status
    return replace(analysis, status=status, measures=replace(analysis.measures, not_measured=not_measured))


def wants_color() -> bool:
    """https://no-color.org: a terminal gets colour unless it asked for none."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _refuse_newer(folder: RunFolder) -> None:
    check_plain(folder.analysis_json)
    try:
        version = json_report.version_of(folder.analysis_json.read_bytes())
    except (OSError, ValueError):
        # absent or damaged: nothing is lost by writing it
        return
    if version > ANALYSIS_VERSION:
        raise TopoutError(
            f"{folder.analysis_json} was written by a newer topout.",
            why=f"its format is version {version}, and this topout would replace it by version {ANALYSIS_VERSION}",
            do=f"{TO_READ_NEWER}; or pass --force",
        )


def _write(analysis: Analysis, folder: RunFolder, *, html: bool) -> Path | None:
    """Path of the report, or None; a folder one may only read is no reason not to print."""
    try:
        json_report.write(analysis, folder)
        if not html:
            return None
        from topout.report import html as html_report

        html_report.write(analysis, folder)
    except OSError as error:
        print(f"Nothing is written into {folder.path}: {error.strerror or error}", file=sys.stderr)
        return None
    return folder.report_html
