"""The folder of a training's checkpoints: which there are, how one appears, and how old ones go.

    step-000000000100              whole, or damaged since
    .writing-step-..., .deleting-step-...   left by a crash; nobody reads them
    .replaced-step-...             one that makes room for another of its number; a crash in between brings it back
    damaged-step-...               one that could not be read when training went on without it

A checkpoint appears by one rename and goes by one rename, so a crash in between leaves it or leaves it not.
"""

import re
import shutil
import time
from contextlib import suppress
from pathlib import Path

from topout.train.checkpoint.files import flush_folder

_STEP = re.compile(r"step-(\d{12,})")
WRITING, DELETING, DAMAGED, REPLACED = ".writing-", ".deleting-", "damaged-", ".replaced-"


class Store:
    """Only rank 0 changes anything but the folder being written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def steps(self) -> list[int]:
        """Of all checkpoints that were committed, ascending."""
        if not self.folder.is_dir():
            return []
        found = (_STEP.fullmatch(entry.name) for entry in self.folder.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:012d}"

    def writing(self, step: int, token: str) -> Path:
        return self.folder / f"{WRITING}{self.path(step).name}-{token}"

    def commit(self, written: Path, step: int) -> None:
        """`written` is complete, marker and all."""
        final = self.path(step)
        if final.exists():  # of a run that fell back behind this step, or of one that counts no steps
            self._set_aside(final, REPLACED)
        try:
            written.rename(final)
        except OSError:
            self.clean()
            raise
        flush_folder(self.folder)
        self.clean()

    def set_damaged_aside(self, step: int) -> None:
        """Out of the way of one with the same number, but still there to be looked at."""
        with suppress(OSError):
            self._set_aside(self.path(step), DAMAGED)

    def retire(self, *, keep: int, keep_every: int | None) -> None:
        """Deletes all but the newest `keep` and those at multiples of `keep_every`."""
        for step in self.steps()[:-keep]:
            if keep_every is None or step % keep_every:
                self._set_aside(self.path(step), DELETING)
        flush_folder(self.folder)
        self.clean()

    def clean(self, also_unfinished: bool = False) -> None:
        """Removes what crashes have left; `also_unfinished` only while nobody writes."""
        if not self.folder.is_dir():
            return
        for entry in self.folder.iterdir():
            if entry.name.startswith(DELETING) or (also_unfinished and entry.name.startswith(WRITING)):
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name.startswith(REPLACED):
                self._bring_back(entry)

    def _bring_back(self, replaced: Path) -> None:
        """Unless its successor is there."""
        match = _STEP.match(replaced.name.removeprefix(REPLACED))
        if match is None or self.path(int(match[1])).exists():
            # by another name first: what is left of it, should some of it stay, is not to come back
            with suppress(OSError):
                shutil.rmtree(replaced.rename(replaced.with_name(f"{DELETING}{time.time_ns()}")), ignore_errors=True)
        else:
            replaced.rename(self.path(int(match[1])))

    def _set_aside(self, path: Path, prefix: str) -> None:
        target = path.with_name(prefix + path.name)
        if target.exists():
            target = path.with_name(f"{target.name}-{time.time_ns()}")
        path.rename(target)
