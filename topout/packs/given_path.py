"""A path that a person named: whether something lies there, whether it may be read, and how it begins."""

import os
from pathlib import Path

from topout.schema.errors import ExitCode, TopoutError
from topout.schema.plain_file import check_plain


def nothing_at(path: Path) -> TopoutError:
    return TopoutError(f"There is nothing at {path}.", why="the path does not exist", do="check its spelling")


def check_readable(path: Path) -> None:
    """Raises where nothing lies at `path`, or nothing that may be read, or no file or folder."""
    try:
        is_folder = path.is_dir()
        is_there = path.exists()
    except PermissionError:
        is_folder, is_there = False, True
    if not is_there:
        raise nothing_at(path)
    check_plain(path)
    if not os.access(path, os.R_OK | os.X_OK if is_folder else os.R_OK):
        raise TopoutError(
            f"{path} cannot be read.",
            why="you may not read it" if not is_folder else "you may not list it, or not open what it holds",
            do="check its permissions and those of the folders above it: ls -ld",
            exit_code=ExitCode.ENVIRONMENT,
        )


def begins_with(path: Path, magic: bytes) -> bool:
    """Whether it is a file with these first bytes, whatever it is called."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(magic)) == magic
    except OSError:
        return False
