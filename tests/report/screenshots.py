"""Pictures of the page, to be looked at by a person: `python -m tests.report.screenshots OUTDIR [REPORT]`.

Without REPORT, of made-up runs of 2 and of 64 ranks; with it, of that page in light and in dark.
"""

import sys
import tempfile
from pathlib import Path

from tests.report.browser import Browser
from tests.report.sample import make_analysis, make_run, make_series
from topout.report.html import render

VIEWS = (
    ("light", 2, 500, 1280, False),
    ("dark", 2, 500, 1280, True),
    ("narrow", 2, 500, 400, False),
    ("ranks-64", 64, 1000, 1280, False),
)


def main(folder: Path, report: Path | None = None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if report is not None:
        for name, dark in (("report-light", False), ("report-dark", True)):
            take_picture(report, folder / f"{name}.png", width=1280, dark=dark)
        return
    for name, num_ranks, num_steps, width, dark in VIEWS:
        series = make_series(num_ranks, num_steps)
        page = folder / f"{name}.html"
        page.write_text(render(make_analysis(series), series, make_run(series)))
        seconds = take_picture(page, folder / f"{name}.png", width=width, dark=dark)
        print(f"{name}: {page.stat().st_size / 1024:.0f} KB, drawn after {seconds:.2f} s")


def take_picture(page: Path, picture: Path, *, width: int, dark: bool) -> float:
    """Seconds until the page was drawn."""
    # chromium's helpers may still write into the profile as it is removed
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        Browser(Path(profile), width=width, dark=dark) as browser,
    ):
        seconds = browser.open(page)
        browser.screenshot(picture)
    return seconds


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
