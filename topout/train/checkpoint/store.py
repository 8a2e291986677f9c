"""The folder of a training's checkpoints: which there are, how one appears, and how old ones go.

    step-000000000100              whole, or damaged since
    .writing-step-..., .deleting-step-...   left by a crash; nobody reads them
    .replaced-step-...             one that makes room for another of its number; a crash in between brings it back
    damaged-step-...               one that could not be read when training went on without it
    .lock                          held by the training that saves here, until it closes or ends

A checkpoint appears by one rename and goes by one rename, so a crash in between leaves it or leaves it not.
"""

import errno
import os
import re
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from topout.schema.errors import ExitCode, TopoutError
from topout.train.checkpoint.files import flush_folder
from topout.train.checkpoint.lock import Lock
from topout.train.checkpoint.manifest import MARKER

_STEP = re.compile(r"step-(\d{12,})")
WRITING, DELETING, DAMAGED, REPLACED = ".writing-", ".deleting-", "damaged-", ".replaced-"
LOCK = ".lock"
_TAKEN = frozenset({errno.EEXIST, errno.ENOTEMPTY})
_ATTEMPTS = 5
Result = TypeVar("Result")


class Gone(Exception):  # noqa: N818  (as the message says it)
    """A checkpoint that another training has deleted or replaced while it was read; others are there to be found."""


class Seen:
    """A checkpoint's folder as it was at first sight."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._stamp = folder, _stamp(folder)

    @property
    def marker(self) -> str | None:
        """What tells it from any of other content; None where it was not there."""
        return None if self._stamp is None else self._stamp[1]

    def raise_if_other(self) -> None:
        """Once all its files are open: where it is still in its place they were its own, and what is open stays."""
        if Seen(self.folder).marker != self.marker:
            raise Gone(self.folder.name)

    def has_gone(self, *, again: bool = False) -> bool:
        """Deleted, or another is in its place; of one that is asked for `again`, not where it was not there at all."""
        stamp = _stamp(self.folder)
        return stamp != self._stamp or (stamp is None and not again)


def read_one(folder: Path, read: Callable[[frozenset[str]], Result]) -> Result:
    """What `read` returns, which chooses anew each time that one has gone; it is told which had gone before."""
    gone: list[str] = []
    for _ in range(_ATTEMPTS):
        try:
            return read(frozenset(gone))
        except Gone as one:
            gone.append(str(one))
    raise TopoutError(
        f"{gone[-1]} went from {folder} while it was read, and so did {_ATTEMPTS - 1} before it.",
        why="Another training saves there, and deletes or replaces old ones sooner than one of them can be read.",
        do="let it keep more of them (keep=), or copy one to a folder of its own",
        exit_code=ExitCode.ENVIRONMENT,
    )


class Store:
    """Only rank 0 changes anything but the folder being written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock, self._is_begun = Lock(folder / LOCK), False

    def steps(self) -> list[int]:
        """Of all checkpoints that were committed, ascending; also of one that makes room for another just now."""
        names = (self._successor(entry).name for entry in self._entries())
        return sorted({int(match[1]) for name in names if (match := _STEP.fullmatch(name))})

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:012d}"

    def writing(self, step: int, token: str) -> Path:
        return self.folder / f"{WRITING}{self.path(step).name}-{token}"

    def commit(self, written: Path, step: int) -> None:
        """`written` is complete, marker and all."""
        try:
            self._put_in_place(written, self.path(step))
        except OSError:
            self.clean()
            raise
        flush_folder(self.folder)
        self.clean()

    def _put_in_place(self, written: Path, final: Path) -> None:
        for attempts_left in reversed(range(_ATTEMPTS)):
            if final.exists():  # of a run that fell back behind this step, or of one that counts no steps
                self._set_aside(final, REPLACED)
            try:
                written.rename(final)
            except OSError as error:
                # whoever restores just now took the one set aside for a crash's, and has brought it back
                if error.errno not in _TAKEN or not attempts_left:
                    raise
            else:
                return

    def set_damaged_aside(self, damaged: Seen) -> None:
        """Out of the way of one with the same number, but still there to be looked at; not another in its place."""
        if not damaged.has_gone():
            with suppress(OSError):
                self._set_aside(damaged.folder, DAMAGED)

    def retire(self, newest: int, *, keep: int, keep_every: int | None) -> None:
        """Deletes all but the last `keep`, those at multiples of `keep_every`, and the `newest`, just committed."""
        for step in self.steps()[:-keep]:
            is_kept = step == newest or (keep_every is not None and step % keep_every == 0)
            if not is_kept and os.path.lexists(self.path(step)):
                self._set_aside(self.path(step), DELETING)
        flush_folder(self.folder)
        self.clean()

    def begin(self) -> None:
        """Before this run's own is written: removes what crashes have left unfinished, once no other living run saves.

        Not before: whoever only reads must leave the one that is being written.
        """
        if not self._is_begun and self._lock.take():
            self._is_begun = True
            self.clean(also_unfinished=True)

    def end(self) -> None:
        self._lock.release()
        self._is_begun = False

    def clean(self, also_unfinished: bool = False) -> None:
        """Removes what crashes have left; `also_unfinished` only while nobody writes."""
        self.bring_back()
        for entry in self._entries():
            if entry.name.startswith(DELETING):
                shutil.rmtree(entry, ignore_errors=True)
            elif self._is_replaced(entry) or (also_unfinished and entry.name.startswith(WRITING)):
                # by another name first: what is left of it, should some of it stay, neither comes back nor is committed
                with suppress(OSError):
                    aside = entry.rename(entry.with_name(f"{DELETING}{time.time_ns()}"))
                    shutil.rmtree(aside, ignore_errors=True)

    def bring_back(self) -> None:
        """Those that a crash kept from being replaced. A living writer that meets this in between tries again."""
        for entry in self._entries():
            if entry.name.startswith(REPLACED) and not self._is_replaced(entry):
                # its successor may have come meanwhile, or another process has brought it back
                with suppress(OSError):
                    entry.rename(self._successor(entry))

    def _entries(self) -> list[Path]:
        return list(self.folder.iterdir()) if self.folder.is_dir() else []

    def _is_replaced(self, entry: Path) -> bool:
        return entry.name.startswith(REPLACED) and self._successor(entry).exists()

    def _successor(self, entry: Path) -> Path:
        """In whose favour one was set aside; any other is its own."""
        # what was set aside under a name already taken has a number after it
        match = _STEP.match(entry.name.removeprefix(REPLACED)) if entry.name.startswith(REPLACED) else None
        return entry.with_name(match[0]) if match else entry

    def _set_aside(self, path: Path, prefix: str) -> None:
        target = path.with_name(prefix + path.name)
        if target.exists():
            target = path.with_name(f"{target.name}-{time.time_ns()}")
        path.rename(target)


def _stamp(folder: Path) -> tuple[int, str] | None:
    """When its last file came and what that says, nothing where it is not there; None where there is no such folder.

    Not the folder's own time, which others change who write there, nor its inode: some file systems number folders anew
    each time they are looked at.
    """
    try:
        with (folder / MARKER).open("rb") as file:
            return os.fstat(file.fileno()).st_mtime_ns, file.read().decode(errors="replace")
    except OSError:
        return (0, "") if os.path.lexists(folder) else None
