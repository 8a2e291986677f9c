"""What can be read to its end: opening a pipe waits until somebody writes into it, perhaps for ever."""

import os
import stat
from pathlib import Path

from topout.schema.errors import TopoutError

_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def check_plain(path: str | Path) -> None:
    """Raises for what is neither a file nor a folder. Where nothing can be seen, whoever opens it says why."""
    try:
        kind = other_kind(os.stat(path).st_mode)  # noqa: PTH116 (of texts, too)
    except (OSError, ValueError):
        return
    if kind is not None:
        raise TopoutError(
            f"{path} is not a file.",
            why=f"it is {kind}, which may keep whoever opens it waiting for ever",
            do="put a file there, or name another; what comes out of a pipe can be saved to one",
        )


def other_kind(mode: int) -> str | None:
    """In words, what a mode of `os.stat` belongs to; None: a file or a folder."""
    return _KINDS.get(stat.S_IFMT(mode))
