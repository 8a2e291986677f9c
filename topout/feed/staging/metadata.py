"""Brings pack.json, index.bin and names.bin of a pack into its staging folder, whole and verified.

Shards are not brought here. The folder's name is the digest of pack.json: a pack that was written anew is another one.
"""

import hashlib
import os
import tempfile
from pathlib import Path

from topout.feed.staging.folder import ROOT_VARIABLE, HeldLock, StagingFolder, wait_for_lock
from topout.feed.staging.origin import Origin, OriginError
from topout.packs.checksum import crc32c
from topout.packs.damage import DamagedPack
from topout.packs.layout import TRAILER_BYTES
from topout.packs.manifest import MANIFEST_NAME, FileEntry, Manifest, read_manifest
from topout.schema.errors import ExitCode, TopoutError

_ATTEMPTS = 3
_CHUNK_BYTES = 8 << 20
_SPARE_BYTES = 1 << 20


def bring_metadata(origin: Origin, root: Path) -> tuple[StagingFolder, Manifest, HeldLock]:
    """The folder of this pack, made when it is not there, with everything but the shards in it; it is in use."""
    text, manifest = _manifest_of(origin)
    folder = StagingFolder(root, hashlib.sha256(text).hexdigest()[:32])
    use = folder.hold()
    # the ranks of a node start together: one brings the files, the others find them
    lock = wait_for_lock(folder.path / "metadata.lock")
    try:
        folder.remove_abandoned(manifest.index.size_bytes + manifest.names.size_bytes + _SPARE_BYTES)
        for entry in (manifest.index, manifest.names):
            if not _is_there(folder.path / entry.file, entry):
                _bring(origin, entry, folder.path)
        if not (folder.path / MANIFEST_NAME).exists():
            _put(folder.path / MANIFEST_NAME, text)
    except BaseException as error:
        use.release()
        if not isinstance(error, OSError):
            raise
        raise TopoutError(
            f"The index of {origin.address} cannot be kept in {folder.path}.",
            why=error.strerror or str(error),
            do=f"name a folder with room for it: {ROOT_VARIABLE}=/dev/shm/me",
            exit_code=ExitCode.ENVIRONMENT,
        ) from error
    finally:
        lock.release()
    return folder, manifest, use


def _manifest_of(origin: Origin) -> tuple[bytes, Manifest]:
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            text = origin.read_whole(MANIFEST_NAME)
        except OriginError as error:
            raise TopoutError(
                f"{origin.address} is not a pack that can be read.",
                why=f"its {MANIFEST_NAME} is not to be had: {error.why}",
                do="check the address: it is the folder that holds pack.json",
                exit_code=error.exit_code,
            ) from error
        with tempfile.TemporaryDirectory() as scratch:
            (Path(scratch) / MANIFEST_NAME).write_bytes(text)
            try:
                return text, read_manifest(Path(scratch))
            except DamagedPack as error:
                if attempt == _ATTEMPTS:
                    raise DamagedPack(
                        Path(origin.address), f"{origin.address}/{MANIFEST_NAME} is damaged.", error.why
                    ) from error
    raise AssertionError("unreachable")


def _is_there(path: Path, entry: FileEntry) -> bool:
    try:
        return path.stat().st_size == entry.size_bytes
    except OSError:
        return False


def _bring(origin: Origin, entry: FileEntry, folder: Path) -> None:
    unfinished = folder / f"{entry.file}.part"
    try:
        for _ in range(_ATTEMPTS):
            crc = 0
            with unfinished.open("wb") as file:
                for start in range(0, entry.size_bytes, _CHUNK_BYTES):
                    chunk = origin.read(entry.file, start, min(_CHUNK_BYTES, entry.size_bytes - start))
                    file.write(chunk)
                    crc = crc32c(chunk[: max(0, entry.size_bytes - TRAILER_BYTES - start)], crc)
                file.flush()
                os.fsync(file.fileno())
            if crc == entry.data_crc:
                unfinished.rename(folder / entry.file)
                return
    finally:
        unfinished.unlink(missing_ok=True)
    raise DamagedPack(
        folder,
        f"{origin.address}/{entry.file} is damaged.",
        "its bytes do not match the checksum in the pack's list",
        f"topout data check {origin.address}",
    )


def _put(path: Path, data: bytes) -> None:
    unfinished = path.with_name(f"{path.name}.part")
    with unfinished.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(path)
