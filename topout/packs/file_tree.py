"""All files below a folder with size and time of change, sorted by the bytes of their paths; folders in parallel.

On a parallel file system each stat is a round trip, so several threads ask at once. Links are followed, as in
torchvision's ImageFolder; a link that leads back up is not. What cannot be looked at is listed without size and time,
so that whoever reads it says so. Not for what is in the files.
"""

import errno
import os
import stat
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import numpy as np
from numpy.typing import NDArray

from topout.schema.errors import ExitCode, TopoutError

_Ancestry = frozenset[tuple[int, int]]


@dataclass(frozen=True, kw_only=True)
class FileTree:
    """Files, and links that lead nowhere; what else there is (pipes, sockets, links back up) is counted."""

    root: Path
    paths: list[str]
    """Relative to the root, with surrogates where they are not UTF-8."""
    sizes: NDArray[np.int64]
    changed_ns: NDArray[np.int64]
    num_folders: int
    num_others: int


@dataclass(frozen=True)
class _Folder:
    files: list[tuple[bytes, int, int]]
    folders: list[tuple[bytes, _Ancestry]]
    num_others: int


def walk_files(root: Path, num_threads: int = 8) -> FileTree:
    """Raises TopoutError where a folder cannot be listed: a pack that silently lacks one is worse than none."""
    files: list[tuple[bytes, int, int]] = []
    num_folders, num_others = 0, 0
    for found in _folders(os.fsencode(root), num_threads):
        files += found.files
        num_folders += 1
        num_others += found.num_others
    files.sort()
    return FileTree(
        root=root,
        paths=[os.fsdecode(path) for path, _, _ in files],
        sizes=np.array([size for _, size, _ in files], dtype=np.int64),
        changed_ns=np.array([changed for _, _, changed in files], dtype=np.int64),
        num_folders=num_folders,
        num_others=num_others,
    )


def _folders(top: bytes, num_threads: int) -> Iterator[_Folder]:
    """Each as soon as it is listed: those that wait are counted, since looking at all of them each time adds up."""
    listed: SimpleQueue[Future[_Folder]] = SimpleQueue()
    with ThreadPoolExecutor(num_threads, thread_name_prefix="topout-walk") as threads:
        try:
            threads.submit(_list, top, b"", frozenset()).add_done_callback(listed.put)
            num_waiting = 1
            while num_waiting:
                found = listed.get().result()
                for path, ancestry in found.folders:
                    threads.submit(_list, top, path, ancestry).add_done_callback(listed.put)
                num_waiting += len(found.folders) - 1
                yield found
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise


def _list(top: bytes, relative: bytes, ancestry: _Ancestry) -> _Folder:
    folder = top + b"/" + relative if relative else top
    prefix = relative + b"/" if relative else b""
    files, folders, num_others = [], [], 0
    try:
        here = os.stat(folder)  # noqa: PTH116 (bytes: names need not be text)
        below = ancestry | {(here.st_dev, here.st_ino)}
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    found = entry.stat()
                except OSError as error:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append((prefix + entry.name, below))
                    elif entry.is_symlink() or error.errno != errno.ENOENT:  # else it is gone since
                        files.append((prefix + entry.name, 0, 0))
                    continue
                if stat.S_ISREG(found.st_mode):
                    files.append((prefix + entry.name, found.st_size, found.st_mtime_ns))
                elif stat.S_ISDIR(found.st_mode) and (found.st_dev, found.st_ino) not in below:
                    folders.append((prefix + entry.name, below))
                else:
                    num_others += 1
    except OSError as error:
        raise TopoutError(
            f"{os.fsdecode(folder)} cannot be listed.",
            why=error.strerror or str(error),
            do="check its permissions (ls -ld), or pack a folder that can be read whole",
            exit_code=ExitCode.ENVIRONMENT,
        ) from error
    return _Folder(files, folders, num_others)
