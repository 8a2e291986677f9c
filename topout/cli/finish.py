"""What follows a run: analysis.json, report.html, and the verdict as text.

Never raises: a job that trained well must not look failed because its report broke.
"""

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from topout.schema.near import near
from topout.schema.run_folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class Finished:
    """What there is to print."""

    text: str
    """Ends with the next useful command."""
    json_text: str | None = None
    """None when the run could not be analysed."""


def finish(folder: RunFolder) -> Finished:
    try:
        return _finish(folder)
    except Exception as error:
        problem = f"topout: the run has ended, but could not be explained ({type(error).__name__}: {error})"
        return Finished(text=f"{problem}\nNext    topout analyze {near(folder.path)}")


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


def _width() -> int:
    return min(shutil.get_terminal_size((100, 24)).columns, 110)


def _wants_color() -> bool:
    """https://no-color.org; the verdict of a run goes to stderr."""
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
