"""Where a page of a study is written, for every verb that has `--html`."""

import sys
from pathlib import Path

from topout.report.study_page import StudyPage, render
from topout.schema.errors import TopoutError
from topout.schema.run_folder import write_whole


def check_page(path: Path | None, name: str) -> Path | None:
    """Before anything runs: a study of an hour must not fail at its last line. A folder gets `name` in it."""
    if path is None:
        return None
    target = path / name if path.is_dir() else path
    if target.suffix.lower() not in (".html", ".htm"):
        # `--html train.py` would replace the script
        raise TopoutError(f"--html {path} is no page.", why="Its name does not end in .html.", do=f"--html {name}")
    if not target.parent.is_dir():
        raise TopoutError(
            f"--html {path} cannot be written.", why=f"There is no folder {target.parent}.", do=f"--html {name}"
        )
    return target


def write_page(path: Path, page: StudyPage) -> None:
    try:
        write_whole(path, render(page))
    except OSError as error:
        raise TopoutError(
            f"{path} cannot be written.", why=error.strerror or str(error), do="--html FILE.html"
        ) from error
    print(f"Page    {path}", file=sys.stderr)
