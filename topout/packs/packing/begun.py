"""The folder `.packing` in which a pack comes into being, and how it takes its place.

    .packing/lock            held by the one process that packs
    .packing/plan.json       what is being packed; another plan begins anew
    .packing/shard-N.data    records of a shard, being written; its footer is still missing
    .packing/shard-N.rows    appears when all records of the shard are on disk: rows, names, what was left out
    .packing/shard-N.bin, index.bin, names.bin, skipped.txt, and last pack.json: all that is to be put in place

Every file appears under its name only after its bytes are on disk. Once `.packing/pack.json` is there, what remains is
renaming, which a killed process's successor simply finishes. The outer pack.json is renamed last.
"""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from topout.packs.manifest import MANIFEST_NAME, SKIPPED_NAME, Manifest
from topout.packs.packing.work_lock import hold_lock
from topout.schema.errors import TopoutError

FOLDER_NAME = ".packing"


class BegunPack:
    """A pack that is being made at one destination; the folder is locked for this process."""

    def __init__(self, destination: Path, *, needs_lock: bool = False) -> None:
        self.destination = destination
        self.folder = destination / FOLDER_NAME
        _check_ours(destination)
        self.folder.mkdir(parents=True, exist_ok=True)
        do = "wait for it, or stop it; a pack that was begun is gone on with"
        self._lock = hold_lock(self.folder / "lock", destination, "packed", do, is_needed=needs_lock)

    @property
    def plan_path(self) -> Path:
        return self.folder / "plan.json"

    @property
    def manifest_path(self) -> Path:
        return self.folder / MANIFEST_NAME

    @property
    def can_go_on(self) -> bool:
        """Whether the command that began it would go on from what lies here."""
        return self.plan_path.exists() or self.manifest_path.exists()

    def data_path(self, shard: int) -> Path:
        return self.folder / f"shard-{shard:05d}.data"

    def rows_path(self, shard: int) -> Path:
        return self.folder / f"shard-{shard:05d}.rows"

    def clear(self) -> None:
        """Removes all that was begun but the lock."""
        for path in self.folder.iterdir():
            if path.name != "lock":
                path.unlink()

    def publish(self, manifest: Manifest) -> None:
        """Puts everything in place; may be repeated after a kill at any point."""
        files = [entry.file for entry in (manifest.index, manifest.names, *manifest.shards)]
        if manifest.skipped is not None:
            files.append(manifest.skipped.file)
        # of an older pack that is replaced: without its pack.json it is none, and its files go
        (self.destination / MANIFEST_NAME).unlink(missing_ok=True)
        for stale in {path.name for path in _pack_files(self.destination)} - set(files):
            (self.destination / stale).unlink()
        for name in files:
            if (self.folder / name).exists():
                (self.folder / name).replace(self.destination / name)
        sync_folder(self.destination)
        self.manifest_path.replace(self.destination / MANIFEST_NAME)
        sync_folder(self.destination)
        self.remove()

    def remove(self) -> None:
        """Gives the lock back as well."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.close()

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def begun_already(begun: BegunPack, way_to_drop: str) -> TopoutError:
    """For whoever would have to clear away what may be hours of work."""
    return TopoutError(
        f"Packing to {begun.destination} was begun and did not finish.",
        why=f"{begun.folder} holds what was packed, and topout pack goes on from there",
        do=f"give the command that began it again, or {way_to_drop}",
    )


def remove_left_behind(destination: Path) -> None:
    """What a process left that was killed after its last rename; a folder that somebody packs in stays."""
    if not (destination / FOLDER_NAME).is_dir():
        return
    try:
        # without a lock nobody can tell what was left behind from what is being made
        begun = BegunPack(destination, needs_lock=True)
    except (OSError, TopoutError):
        return
    begun.remove()


def _check_ours(destination: Path) -> None:
    """Taking its place, a pack removes files that an older one left; nobody else's may be among them."""
    if not destination.is_dir():
        return
    names = {path.name for path in destination.iterdir()}
    if names and not names & {MANIFEST_NAME, FOLDER_NAME}:
        raise TopoutError(
            f"{destination} is not empty.",
            why=f"it holds {min(names)!r} and no pack; a pack has a folder of its own",
            do="choose a folder that is empty or not there yet",
        )


def write_durably(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """The whole file or none of it, on disk before it appears under its name."""
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as file:
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def sync_folder(folder: Path) -> None:
    """Makes renames in a folder survive a loss of power, where the file system has that notion."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError:
        # some network file systems refuse to sync a folder; their server does it by itself
        pass
    finally:
        os.close(fd)


def _pack_files(folder: Path) -> Iterable[Path]:
    yield from folder.glob("shard-*.bin")
    yield from (path for name in ("index.bin", "names.bin", SKIPPED_NAME) if (path := folder / name).exists())
