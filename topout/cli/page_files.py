"""Where a verb writes what it was told to: a page (`--html`), or another file."""

import sys
from pathlib import Path

from topout.cli.streams import NO_ROOM
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
    _check_folder(target, f"--html {path}", f"--html {name}")
    return target


def check_file(path: Path | None, option: str, name: str) -> Path | None:
    """As `check_page`, for the file of another option."""
    if path is None:
        return None
    target = path / name if path.is_dir() else path
    _check_folder(target, f"{option} {path}", f"{option} {name}")
    return target


def write_file(path: Path, content: str, do: str) -> None:
    """Whole or not at all; `do` is what helps where it may not be written."""
    try:
        write_whole(path, content)
    except OSError as error:
        if error.errno in NO_ROOM:
            raise
        raise TopoutError(f"{path} cannot be written.", why=error.strerror or str(error), do=do) from error


def write_page(path: Path, page: StudyPage) -> None:
    write_file(path, render(page), "--html FILE.html")
    print(f"Page    {path}", file=sys.stderr)


def _check_folder(target: Path, given: str, do: str) -> None:
    if not target.parent.is_dir():
        raise TopoutError(f"{given} cannot be written.", why=f"There is no folder {target.parent}.", do=do)
