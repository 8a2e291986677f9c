"""One checkpoint on its way to the disk, beside training: a thread with low priority and the ranks' own Gloo group.

Every rank writes its files and says so; rank 0 writes the manifest and the marker only when all have. Whatever goes
wrong on one rank, all learn it, the unfinished folder goes, and the previous checkpoint stays.
"""

import errno
import json
import os
import shutil
import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topout.train.checkpoint import manifest
from topout.train.checkpoint.agreement import Agreement
from topout.train.checkpoint.files import Written, flush_folder, write_image, write_small
from topout.train.checkpoint.not_a_number import lost_parameter
from topout.train.checkpoint.plan import Layout, data_name
from topout.train.checkpoint.store import Store

_NICENESS = 10


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What was captured at a step boundary, and where it goes."""

    step: int
    epoch: int | None
    seed: int
    trees: dict[str, Any]
    layout: Layout
    trained: Collection[str]
    """Names of tensors that are parameters in training."""
    image: Callable[[], memoryview]
    folder: Path


class Writing:
    """`wait` says what came of it: None, or what went wrong."""

    def __init__(self, snapshot: Snapshot, store: Store, agreement: Agreement, retire: Callable[[int], None]) -> None:
        self.step = snapshot.step
        self._snapshot, self._store, self._agreement, self._retire = snapshot, store, agreement, retire
        self._error: str | None = "it was interrupted"
        self.lost: str | None = None
        """A parameter that holds NaN on some rank; the same on all of them once it is done."""
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="topout-checkpoint", daemon=True)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    @property
    def is_of_this_process(self) -> bool:
        """Not in a child that the script has forked, where its thread is not."""
        return self._pid == os.getpid()

    def wait(self) -> str | None:
        self._thread.join()
        return self._error

    def _run(self) -> None:
        _lower_priority()
        try:
            self._error = self._write_and_commit()
        except Exception as error:  # training goes on whatever happens here; `wait` tells
            self._error = f"{type(error).__name__}: {error}"

    def _write_and_commit(self) -> str | None:
        report = self._written_files()
        reports = self._agreement.shared(report)
        wrong = [f"rank {rank}: {given['error']}" for rank, given in enumerate(reports) if given["error"] is not None]
        self.lost = next((given["lost"] for given in reports if given["lost"] is not None), None)
        outcome = "; ".join(wrong) or None
        if self._agreement.place.is_first:
            outcome = outcome or self._committed([given["files"] for given in reports])
            if outcome is not None:
                shutil.rmtree(self._snapshot.folder, ignore_errors=True)
        told: str | None = self._agreement.first(outcome)
        if told is None and self._agreement.place.is_first:
            # after the others have heard: deleting what thousands of ranks wrote takes long. One that cannot be deleted
            # is no reason to call the new one bad
            with suppress(OSError):
                self._retire(self._snapshot.step)
        return told

    def _written_files(self) -> dict[str, Any]:
        rank, snapshot = self._agreement.place.rank, self._snapshot
        try:
            image = snapshot.image()
            lost = lost_parameter(image, snapshot.layout.pieces, snapshot.trained)
            if lost is not None:
                return {"error": f"{lost} holds NaN", "lost": lost, "files": {}}
            snapshot.folder.mkdir(parents=True, exist_ok=True)
            files: dict[str, Written] = {}
            if len(image):
                files[data_name(rank)] = write_image(snapshot.folder / data_name(rank), image)
            tree = manifest.tree_name(rank)
            files[tree] = write_small(snapshot.folder / tree, json.dumps(snapshot.trees).encode())
            flush_folder(snapshot.folder)
        except Exception as error:  # the other ranks wait for this report
            return {"error": _said(error), "lost": None, "files": {}}
        return {
            "error": None,
            "lost": None,
            "files": {name: [file.num_bytes, file.crc32c] for name, file in files.items()},
        }

    def _committed(self, files: list[dict[str, Any]]) -> str | None:
        snapshot = self._snapshot
        by_name = {name: value for given in files for name, value in given.items()}
        try:
            self._check_all_there(by_name)
            manifest.write(
                snapshot.folder,
                {
                    "step": snapshot.step,
                    "epoch": snapshot.epoch,
                    "world_size": self._agreement.place.world_size,
                    "seed": snapshot.seed,
                    "files": by_name,
                    "tensors": snapshot.layout.tensors,
                },
            )
            self._store.commit(snapshot.folder, snapshot.step)
        except Exception as error:  # the other ranks wait for the outcome
            return _said(error)
        return None

    def _check_all_there(self, names: Iterable[str]) -> None:
        """Where nobody can lock, another training may have taken the folder for a crash's, and a rank made it anew."""
        for name in names:
            path = self._snapshot.folder / name
            if not path.exists():
                raise FileNotFoundError(errno.ENOENT, "it was removed before all ranks had written theirs", str(path))


def _said(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror} ({Path(str(error.filename)).name})" if error.filename else error.strerror
    return f"{type(error).__name__}: {error}"


def _lower_priority() -> None:
    """Of this thread alone, where the system has such a thing: a core that training wants is not for writing."""
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
