"""Which paths packs stand in for, and what is at them.

A path that no pack knows is nobody's business here: the caller goes on to the real file system, whose errors are then
the errors the script sees. The same for a name that the process has written, renamed or removed since.
"""

import mmap
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topout.feed.serve.folder_entry import FILE_MODE, FOLDER_MODE, status
from topout.feed.serve.packed_bytes import PackedBytes
from topout.feed.serve.tree import Tree

_INODES = 1 << 62
_INODES_EACH = 1 << 40
_MOST_KNOWN = 1 << 16
"""Paths that are found without bisection; some 200 bytes each, in every worker."""


class Mount:
    """One pack at one root. Paths inside it are bytes relative to the root."""

    def __init__(self, root: str, files: PackedBytes, tree: Tree, place: int) -> None:
        self.root = root
        self.files = files
        self.tree = tree
        self.changed: set[bytes] = set()
        self._device = nearest_device(root)
        self._first_inode = _INODES + place * _INODES_EACH

    def file(self, path: bytes) -> int | None:
        return None if self._is_changed(path) else self.tree.file(path)

    def is_folder(self, path: bytes) -> bool:
        return not path or (self.tree.is_folder(path) and not self._is_changed(path))

    def file_status(self, number: int) -> os.stat_result:
        return status(
            mode=FILE_MODE,
            inode=self._first_inode + number,
            device=self._device,
            size_bytes=self.files.size(number),
            time_ns=self.files.time_ns,
        )

    def folder_status(self, path: bytes) -> os.stat_result:
        # from the other end, and the same in every process
        inode = self._first_inode + _INODES_EACH - 1 - zlib.crc32(path)
        return status(mode=FOLDER_MODE, inode=inode, device=self._device, size_bytes=4096, time_ns=self.files.time_ns)

    def children(self, path: bytes) -> Iterator[tuple[bytes, bool]]:
        for name, is_folder in self.tree.children(path):
            if not self._is_changed(path + b"/" + name if path else name):
                yield name, is_folder

    def _is_changed(self, path: bytes) -> bool:
        """Whether the script has put something else there, or in the place of a folder above."""
        if not self.changed:
            return False
        parts = path.split(b"/")
        return any(b"/".join(parts[:depth]) in self.changed for depth in range(1, len(parts) + 1))


@dataclass(frozen=True, slots=True)
class Found:
    """A packed file (with its number) or folder (None)."""

    mount: Mount
    path: bytes
    number: int | None

    def file_status(self) -> os.stat_result:
        assert self.number is not None
        return self.mount.file_status(self.number)


class Mounts:
    """All packs of a process."""

    def __init__(self, mounts: Sequence[Mount]) -> None:
        # a pack inside another's root comes first
        self._prefixes: list[tuple[str, str, Mount]] = sorted(
            {(spelling, f"{spelling}/", mount) for mount in mounts for spelling in spellings(mount.root)},
            key=lambda item: (-len(item[0]), item[0]),
        )
        self._used = mmap.mmap(-1, mmap.PAGESIZE)
        self._known: dict[str, Found] = {}
        self._above: dict[str, set[str]] = {}
        for root, _, _ in self._prefixes:
            child = root
            while child != "/":
                above, name = os.path.split(child)
                self._above.setdefault(above, set()).add(name)
                child = above

    def find(self, path: Any) -> Found | None:
        # a script asks for the same paths in every epoch
        known = self._known.get(path) if type(path) is str else None
        if known is not None:
            return known
        inside = self.locate(path)
        if inside is None:
            return None
        self._used[0] = 1
        mount, relative = inside
        number = mount.file(relative)
        if number is not None:
            found = Found(mount, relative, number)
            # from the root of the file system only: what others mean changes with the working folder
            if type(path) is str and path[0] == "/" and len(self._known) < _MOST_KNOWN:
                self._known[path] = found
            return found
        folder = relative.rstrip(b"/")
        return Found(mount, folder, None) if mount.is_folder(folder) else None

    def locate(self, path: Any) -> tuple[Mount, bytes] | None:
        """The pack in whose root a path lies, whether or not the pack has it."""
        whole = absolute(path)
        if whole is None:
            return None
        for root, prefix, mount in self._prefixes:
            if whole.startswith(prefix):
                return mount, os.fsencode(whole[len(prefix) :])
            if whole == root:
                return mount, b""
        return None

    def above(self, path: Any) -> set[str]:
        """Names that the folder at `path` has because a root, or a folder above one, lies in it; mostly none."""
        whole = absolute(path)
        return self._above.get(whole.rstrip("/") or "/", set()) if whole is not None else set()

    def was_used(self) -> bool:
        """Whether this process, or one forked from it, asked for anything under a root."""
        return bool(self._used[0])

    def roots(self) -> list[str]:
        return sorted({mount.root for _, _, mount in self._prefixes})

    def folder_status(self, path: Any) -> os.stat_result | None:
        """Of a folder that is there only because packs are: in a root, or above one. None for anything else."""
        found = self.find(path)
        if found is not None:
            return found.mount.folder_status(found.path) if found.number is None else None
        return self._prefixes[0][2].folder_status(os.fsencode(absolute(path) or "")) if self.above(path) else None

    def note_change(self, path: Any) -> None:
        """The script writes to a path itself: from now on that name is read where it was written."""
        inside = self.locate(path)
        if inside is not None:
            inside[0].changed.add(inside[1].rstrip(b"/"))
            self._known.clear()


def absolute(path: Any) -> str | None:
    """A path from `/` on without `.`, `..` and doubled slashes; None for what is no path (a file number).

    A slash at the end stays: with it a file's name is none.
    """
    if not isinstance(path, str):
        if isinstance(path, int):
            return None
        try:
            path = os.fsdecode(path)
        except TypeError:
            return None
    if path[:1] != "/":
        if not path:
            return None
        try:
            path = f"{os.getcwd()}/{path}"  # noqa: PTH109 (called for every open)
        except OSError:
            return None
    if "/." not in path and "//" not in path:
        return str(path)
    # a folder may be a link, and then its parent is another's
    plain = os.path.realpath(path) if "/../" in f"{path}/" else os.path.normpath(path)
    # two slashes at the start are one on Linux, though POSIX, and so Python, leaves that open
    plain = f"/{plain.lstrip('/')}"
    return f"{plain}/" if path[-1] == "/" and plain != "/" else plain


def spellings(root: str) -> set[str]:
    """A root as it was given, and without links: the working folder's name has none."""
    return {os.path.abspath(root), os.path.realpath(root)}  # noqa: PTH100


def nearest_device(root: str) -> int:
    """Of the root or the nearest folder above it that exists; another one would make the root a mount point."""
    for folder in (Path(root), *Path(root).parents):
        try:
            return folder.stat().st_dev
        except OSError:
            continue
    return 0
