"""Where a run is kept that has no other place: a folder of each user's own among the temporary files of a host.

Not for runs that somebody wants to keep: a host may clear its temporary files at any time.
"""

# paths are texts here: ranks that start do not wait for `pathlib`
# ruff: noqa: PTH102

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile


def temporary_runs() -> str:
    """Its name; `make_private` makes it."""
    try:
        place = tempfile.gettempdir()
    except FileNotFoundError:
        # nothing here can be written, which whoever tries will hear
        place = "/tmp"
    return f"{place}/topout-runs-{os.getuid()}"


def make_private(path: str) -> None:
    """Raises OSError where it cannot be made, or somebody else was first: anybody may make any name there."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(errno.EPERM, "it belongs to somebody else", path)
