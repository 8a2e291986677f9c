"""A file or folder that appears whole or not at all: written under another name beside its place, then renamed.

Never over something that is there. What a killed run left under the other name is removed by the next one; a lock
beside it keeps two that run at once apart.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from topout.packs.packing.begun import sync_folder
from topout.packs.packing.storage_errors import cannot_write
from topout.packs.packing.work_lock import hold_lock
from topout.schema.errors import TopoutError


@contextmanager
def arriving_folder(destination: Path) -> Iterator[Path]:
    """Yields an empty folder; leaving the block moves it to `destination`."""
    with _arriving(destination, is_folder=True) as unfinished:
        unfinished.mkdir()
        yield unfinished
        for folder, _, files in os.walk(unfinished):
            if len(files) <= _MOST_SYNCED_ALONE:
                for name in files:
                    _synchronise(Path(folder, name))
            else:
                os.sync()
                break


@contextmanager
def arriving_file(destination: Path) -> Iterator[Path]:
    """Yields a path at which to make the file; leaving the block moves it to `destination`."""
    with _arriving(destination, is_folder=False) as unfinished:
        yield unfinished
        _synchronise(unfinished)


_MOST_SYNCED_ALONE = 1000
"""With more files, one call for all that is unwritten costs less than one for each."""


@contextmanager
def _arriving(destination: Path, *, is_folder: bool) -> Iterator[Path]:
    destination = destination.absolute()
    _refuse_taken(destination, is_folder)
    unfinished = destination.with_name(f".{destination.name}.unpacking")
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        with _alone(destination, unfinished.with_name(f"{unfinished.name}.lock")):
            try:
                _remove(unfinished)
                yield unfinished
                _refuse_taken(destination, is_folder)
                unfinished.rename(destination)
                sync_folder(destination.parent)
            except BaseException:
                _remove(unfinished)
                raise
    except OSError as error:
        raise cannot_write(destination, error, "unpacking") from error


@contextmanager
def _alone(destination: Path, path: Path) -> Iterator[None]:
    lock = hold_lock(path, destination, "unpacked", "wait for it, or choose another place")
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        os.close(lock)


def _refuse_taken(destination: Path, is_folder: bool) -> None:
    if not is_folder and destination.is_dir():
        raise TopoutError(
            f"{destination} is a folder.",
            why="this format is one file, which needs a name",
            do=f"name the file: {destination / 'NAME'}",
        )
    is_empty_folder = destination.is_dir() and not any(destination.iterdir())
    if destination.exists() and not is_empty_folder:
        raise TopoutError(
            f"{destination} is there already.",
            why="what lies there would be lost",
            do="choose another place, or remove it first",
        )


def _remove(unfinished: Path) -> None:
    if unfinished.is_dir():
        shutil.rmtree(unfinished, ignore_errors=True)
        return
    with suppress(OSError):
        unfinished.unlink()


def _synchronise(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
