"""The folders that a pack's names make, found by bisection in the sorted names: nothing is built, nothing is held.

Every rank and every loader worker has such a tree; one of Python objects for a million names would cost each of them
hundreds of megabytes. Not for names in no order: the format keeps the sorted order for this.
"""

from bisect import bisect_left
from collections.abc import Iterator
from typing import Protocol

_AFTER_SLASH = b"0"
"""The byte after `/`: the first name that no longer begins with `folder/` is at or after `folder0`."""
_MOST_RANGES = 65_536


class SortedNames(Protocol):
    """Names as bytes, in ascending order."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: int) -> bytes: ...

    def number(self, place: int) -> int:
        """Of the sample that bears the name at a place."""


class Tree:
    """Files and folders by their path relative to the root, in bytes; b"" is the root itself."""

    def __init__(self, names: SortedNames) -> None:
        self._names = names
        self._ranges: dict[bytes, tuple[int, int]] = {b"": (0, len(names))}

    def file(self, path: bytes) -> int | None:
        """The number of the sample of that name."""
        folder, slash, _ = path.rpartition(b"/")
        start, stop = self._range(folder) if slash else (0, len(self._names))
        place = bisect_left(self._names, path, start, stop)
        if place < stop and self._names[place] == path:
            return self._names.number(place)
        return None

    def is_folder(self, path: bytes) -> bool:
        start, stop = self._range(path)
        return start < stop

    def children(self, path: bytes) -> Iterator[tuple[bytes, bool]]:
        """Name of each file and folder in a folder, and whether it is a folder; in the order of the names below."""
        place, stop = self._range(path)
        skipped = len(path) + 1 if path else 0
        while place < stop:
            child, slash, _ = self._names[place][skipped:].partition(b"/")
            yield child, bool(slash)
            if slash:
                whole = path + b"/" + child if path else child
                place = bisect_left(self._names, whole + _AFTER_SLASH, place, stop)
            else:
                place += 1

    def _range(self, folder: bytes) -> tuple[int, int]:
        """Places of the names below a folder; empty for what is none."""
        found = self._ranges.get(folder)
        if found is None:
            start = bisect_left(self._names, folder + b"/")
            found = start, bisect_left(self._names, folder + _AFTER_SLASH, start)
            # what is not there is not kept: a script may ask for a million names that are not
            if found[0] < found[1] and len(self._ranges) < _MOST_RANGES:
                self._ranges[folder] = found
        return found
