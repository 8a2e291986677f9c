"""Where a verb writes what it was told to: a page (`--html`), or another file."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

from topout.cli.streams import NO_ROOM
from topout.report.shell import GENERATOR
from topout.report.study_page import StudyPage, render
from topout.schema.errors import ExitCode, TopoutError
from topout.schema.run_folder import is_file, is_folder, write_whole

_HEAD_BYTES = 4096


def check_page(path: Path | None, name: str) -> Path | None:
    """Before anything runs: a study of an hour must not fail at its last line. A folder gets `name` in it."""
    if path is None:
        return None
    target = path / name if is_folder(path) else path
    if target.suffix.lower() not in (".html", ".htm"):
        # `--html train.py` would replace the script
        raise TopoutError(f"--html {path} is no page.", why="Its name does not end in .html.", do=f"--html {name}")
    _check_folder(target, f"--html {path}", f"--html {name}")
    if os.path.lexists(target) and not _is_own_page(target):
        raise _kept(target, "It is no page of topout's, and would be lost.")
    return target


def check_file(path: Path | None, option: str, name: str, why_kept: Callable[[Path], str | None]) -> Path | None:
    """As `check_page`, for the file of another option; `why_kept` says why a file that is there is not replaced."""
    if path is None:
        return None
    target = path / name if is_folder(path) else path
    suffix = Path(name).suffix
    if target.suffix != suffix:
        raise TopoutError(
            f"{option} {path} is no {suffix} file.", why=f"Its name does not end in {suffix}.", do=f"{option} {name}"
        )
    _check_folder(target, f"{option} {path}", f"{option} {name}")
    why = why_kept(target) if os.path.lexists(target) else None
    if why is not None:
        raise _kept(target, why)
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


def _kept(target: Path, why: str) -> TopoutError:
    return TopoutError(f"{target} is there already.", why=why, do="name another file")


def _is_own_page(path: Path) -> bool:
    """An empty one may be replaced as well."""
    if not is_file(path):  # a pipe would be waited for
        return False
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return False
    return not head or GENERATOR.encode() in head


def _check_folder(target: Path, given: str, do: str) -> None:
    if not is_folder(target.parent):
        raise TopoutError(f"{given} cannot be written.", why=f"There is no folder {target.parent}.", do=do)
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise TopoutError(
            f"{given} cannot be written.",
            why=f"{target.parent} may not be written, or is on a file system that can only be read.",
            do=f"{do} in another folder",
            exit_code=ExitCode.ENVIRONMENT,
        )
