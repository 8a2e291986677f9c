"""`os.listdir` and `os.scandir` of packed folders.

Where the folder is there it is listed: it may hold empty folders, links, and files that nobody packed, and one listing
is cheap beside what its files cost. Packed names that it lacks come after. With the folder gone the pack answers alone,
in the order of its names; no file system promises one, and no script may rely on it.
"""

import errno
import os
from collections.abc import Callable, Iterator
from typing import Any

from topout.feed.serve.folder_entry import Entries, PackedEntry
from topout.feed.serve.mounts import Found, Mounts

Function = Callable[..., Any]


def interposed_listdir(mounts: Mounts, real: Function) -> Function:
    def listdir(path: Any = None) -> list[Any]:
        place = "." if path is None else path
        found, above = _folder(mounts, place)
        if found is None and not above:
            names: list[Any] = real(path)
            return names
        listed = {os.fsencode(name): None for name in _beside(real, path)}
        if found is not None:
            listed.update((name, None) for name, _ in found.mount.children(found.path))
        listed.update((os.fsencode(name), None) for name in sorted(above))
        return [name if isinstance(place, bytes) else os.fsdecode(name) for name in listed]

    return listdir


def interposed_scandir(mounts: Mounts, real: Function, look: Function) -> Function:
    """`look` is the interposed `stat`."""

    def scandir(path: Any = None) -> Any:
        place = "." if path is None else path
        found, above = _folder(mounts, place)
        if found is None and not above:
            return real(path)
        beside = _beside(real, path)
        return Entries(_entries(os.fspath(place), found, beside, sorted(above), look))

    return scandir


def _entries(place: Any, found: Found | None, beside: list[Any], above: list[str], look: Function) -> Iterator[Any]:
    """Each name once: what lies in the folder, what the pack has, roots that are there only as packs."""
    start = os.fsencode(place)
    start = start if start.endswith(b"/") else start + b"/"
    seen = {os.fsencode(entry.name) for entry in beside}
    yield from beside
    packed = () if found is None else found.mount.children(found.path)
    for name, is_folder in (*packed, *((os.fsencode(root), True) for root in above)):
        if name in seen:
            continue
        seen.add(name)
        if isinstance(place, bytes):
            yield PackedEntry(name, start + name, is_folder, look)
        else:
            yield PackedEntry(os.fsdecode(name), os.fsdecode(start + name), is_folder, look)


def _folder(mounts: Mounts, path: Any) -> tuple[Found | None, set[str]]:
    """A packed folder, and names of roots in it; raises for a packed file."""
    if isinstance(path, int):
        return None, set()
    found = mounts.find(path)
    if found is not None and found.number is not None:
        raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    return found, mounts.above(path)


def _beside(real: Function, path: Any) -> list[Any]:
    """What the file system has there; it need not have the folder, since packs stand for it."""
    try:
        listing = real(path)
        if isinstance(listing, list):
            return listing
        with listing as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []
