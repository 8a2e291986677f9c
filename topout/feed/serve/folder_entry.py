"""What `os.stat` and `os.scandir` say of packed files and folders.

Inode numbers lie far above those of real files, so that no two are taken for one (`samefile`, tar's hard links). Times
are those of the pack: the format keeps none of single files.
"""

import os
import stat
from collections.abc import Iterator
from types import TracebackType
from typing import Any

FILE_MODE = stat.S_IFREG | 0o444
FOLDER_MODE = stat.S_IFDIR | 0o555
_BLOCK_BYTES = 4096


def status(*, mode: int, inode: int, device: int, size_bytes: int, time_ns: int) -> os.stat_result:
    seconds = time_ns / 1e9
    whole = time_ns // 10**9
    return os.stat_result(
        (mode, inode, device, 1, os.getuid(), os.getgid(), size_bytes, whole, whole, whole),
        {
            "st_atime": seconds, "st_mtime": seconds, "st_ctime": seconds,
            "st_atime_ns": time_ns, "st_mtime_ns": time_ns, "st_ctime_ns": time_ns,
            "st_blksize": _BLOCK_BYTES, "st_blocks": -(-size_bytes // 512), "st_rdev": 0,
        },
    )  # fmt: skip


class PackedEntry:
    """An `os.DirEntry`, which Python code cannot make, of a packed file or folder; `look` is asked for its `stat`."""

    __slots__ = ("_is_folder", "_look", "name", "path")

    def __init__(self, name: Any, path: Any, is_folder: bool, look: Any) -> None:
        self.name = name
        self.path = path
        self._is_folder = is_folder
        self._look = look

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return self._is_folder

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return not self._is_folder

    def is_symlink(self) -> bool:
        return False

    def is_junction(self) -> bool:
        return False

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        found: os.stat_result = self._look(self.path)
        return found

    def inode(self) -> int:
        return self.stat().st_ino

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"


class Entries:
    """What `os.scandir` returns: an iterator that is also a context."""

    def __init__(self, entries: Iterator[Any]) -> None:
        self._entries: Iterator[Any] = entries

    def __iter__(self) -> "Entries":
        return self

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> "Entries":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())
