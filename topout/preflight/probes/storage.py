"""File systems tried out: small files opened, looked at and read, then one larger file, in a folder of our own.

A few megabytes, bounded in time, removed afterwards. With several hosts each reads what its neighbour wrote, so that no
cache of its own helps; alone, caches hold what was just written, and the figures are upper bounds.
"""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from topout.preflight.facts import RUN_FOLDER, Place
from topout.preflight.probes.meeting import Meeting
from topout.preflight.probes.mounts import find_mount

FOLDER_PREFIX = ".topout-doctor-"
_NUM_FILES = 200
_FILE_BYTES = 4096
_LARGE_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 20
_WRITE_LIMIT_S = 1.5
_READ_LIMIT_S = 1.0
_own: list[Path] = []
"""Folders that this process made and has not removed yet."""


def places_of(data: str | None, run_folder: Path | None) -> list[tuple[str, str]]:
    """(purpose, path) of what a training reads and writes."""
    temporary = os.environ.get("TMPDIR") or tempfile.gettempdir()
    return [
        *([("data", data)] if data else []),
        *([(RUN_FOLDER, str(run_folder))] if run_folder else []),
        ("temporary folder", temporary),
        *([("shared memory", "/dev/shm")] if Path("/dev/shm").is_dir() else []),
    ]


def try_out(purpose: str, path: str, meeting: Meeting) -> Place:
    """All hosts call it for the same purposes in the same order."""
    place = _looked_up(purpose, path)
    folder, problem = _own_folder(place)
    is_written = False
    try:
        if folder is not None:
            place = _written(place, folder)
            is_written = place.write_bytes_per_s is not None
        others = meeting.exchange(f"written {purpose}", str(folder) if is_written else None)
        num_hosts = sum(other is not None for other in others)
        if is_written and folder is not None:
            place = _read(place, folder, _neighbour(others, meeting.number), num_hosts)
        elif place.problem is None:
            place = _read_what_is_there(replace(place, problem=problem))
        # nobody removes what a neighbour still reads
        meeting.exchange(f"read {purpose}", "done")
    finally:
        remove_own()
    return place


def remove_own() -> None:
    """Also called by a probe that is told to end."""
    while _own:
        shutil.rmtree(_own.pop(), ignore_errors=True)


def _looked_up(purpose: str, path: str) -> Place:
    mount = find_mount(path)
    place = Place(
        purpose=purpose,
        path=path,
        file_system=mount.file_system if mount else None,
        mounted_from=mount.source if mount else None,
        mounted_at=mount.point if mount else None,
        is_writable=os.access(path, os.W_OK | os.X_OK) and Path(path).is_dir(),
    )
    try:
        space = os.statvfs(path)
    except OSError as error:
        return replace(place, problem=error.strerror or str(error))
    return replace(
        place,
        free_bytes=space.f_bavail * space.f_frsize,
        # file systems that make inodes as they need them say 0
        free_inodes=space.f_favail if space.f_files else None,
    )


def _own_folder(place: Place) -> tuple[Path | None, str | None]:
    if place.problem is not None or not place.is_writable or (place.free_bytes or 0) < 4 * _LARGE_BYTES:
        return None, "too little room to try it out" if place.is_writable else None
    try:
        folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=place.path))
    except OSError as error:
        return None, error.strerror or str(error)
    _own.append(folder)
    return folder, None


def _written(place: Place, folder: Path) -> Place:
    """Small files, then a large one with fsync; a file system that fails half-way says so and is not read."""
    try:
        content = os.urandom(_FILE_BYTES)
        end_s = time.perf_counter() + _WRITE_LIMIT_S
        for number in range(_NUM_FILES):
            _write_file(folder / f"small-{number:04d}", content)
            if time.perf_counter() > end_s:
                break
        return replace(place, write_bytes_per_s=_write_large(folder / "large"))
    except OSError as error:
        return replace(place, problem=error.strerror or str(error))


def _write_file(path: Path, content: bytes) -> None:
    with open(path, "wb", buffering=0) as file:
        file.write(content)


def _write_large(path: Path) -> float:
    # random: some file systems compress, and would seem faster than any data is
    chunk = os.urandom(_CHUNK_BYTES)
    written = 0
    start_s = time.perf_counter()
    with open(path, "wb", buffering=0) as file:
        while written < _LARGE_BYTES and time.perf_counter() - start_s < _WRITE_LIMIT_S:
            written += file.write(chunk)
        os.fsync(file.fileno())
        taken_s = time.perf_counter() - start_s
        # what is on the disk need not stay in memory; file systems without such a cache ignore it
        with contextlib.suppress(OSError):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return written / taken_s


def _neighbour(others: Sequence[str | None], number: int) -> Path | None:
    """The folder of the next host, when it is another one and can be seen from here."""
    place = others[(number + 1) % len(others)]
    if len(others) == 1 or place is None or place == others[number]:
        return None
    return Path(place) if Path(place).is_dir() else None


def _read(place: Place, own: Path, neighbour: Path | None, num_hosts: int) -> Place:
    folder = neighbour or own
    method = "files that the neighbour wrote" if neighbour else "files just written here: caches help"
    small = sorted(folder.glob("small-*"))
    stats_per_s = _per_s(small, os.stat)
    opens_per_s = _per_s(small, _read_small)
    return replace(
        place,
        stats_per_s=stats_per_s,
        opens_per_s=opens_per_s,
        read_bytes_per_s=_read_large([folder / "large"]),
        method=method,
        num_hosts=num_hosts,
    )


def _read_what_is_there(place: Place) -> Place:
    """A folder that may only be read is judged by some of the files in it."""
    files = _some_files(Path(place.path))
    if not files:
        return replace(place, problem=place.problem or "not writable, and no file in it to read")
    return replace(
        place,
        stats_per_s=_per_s(files, os.stat),
        opens_per_s=_per_s(files, _read_small),
        read_bytes_per_s=_read_large(files),
        method=f"{len(files)} files found there",
    )


def _some_files(root: Path) -> list[Path]:
    if root.is_file():
        return [root]
    found: list[Path] = []
    end_s = time.perf_counter() + _READ_LIMIT_S
    for folder, _, names in os.walk(root):
        found += [Path(folder) / name for name in names]
        if len(found) >= _NUM_FILES or time.perf_counter() > end_s:
            break
    return found[:_NUM_FILES]


def _read_small(path: Path) -> None:
    with open(path, "rb", buffering=0) as file:
        file.read(_FILE_BYTES)


def _per_s(paths: Iterable[Path], act: Callable[[Path], object]) -> float | None:
    start_s = time.perf_counter()
    done = 0
    for path in paths:
        with contextlib.suppress(OSError):
            act(path)
            done += 1
        if time.perf_counter() - start_s > _READ_LIMIT_S:
            break
    return done / (time.perf_counter() - start_s) if done else None


def _read_large(paths: Iterable[Path]) -> float | None:
    start_s = time.perf_counter()
    num_bytes = 0
    buffer = bytearray(_CHUNK_BYTES)
    for path in paths:
        with contextlib.suppress(OSError), open(path, "rb", buffering=0) as file:
            while (got := file.readinto(buffer)) and time.perf_counter() - start_s < _READ_LIMIT_S:
                num_bytes += got
        if num_bytes >= _LARGE_BYTES or time.perf_counter() - start_s > _READ_LIMIT_S:
            break
    return num_bytes / (time.perf_counter() - start_s) if num_bytes else None
