"""Names for rows that have none: the file's stem and the row's number in it.

Made when asked for, so that the names of a million rows take no memory. Not for formats that keep names of their own.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import overload

_WIDTH = 8


class NumberedNames(Sequence[str]):
    def __init__(self, parts: Sequence[tuple[str, int]]) -> None:
        """Parts are (prefix, number of rows), in order; an empty prefix leaves the bare number."""
        self._prefixes = [prefix for prefix, _ in parts]
        self._starts = [0, *accumulate(num_rows for _, num_rows in parts)]

    def __len__(self) -> int:
        return self._starts[-1]

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = index + len(self) if index < 0 else index
        if not 0 <= number < len(self):
            raise IndexError(index)
        part = bisect_right(self._starts, number) - 1
        return _name(self._prefixes[part], number - self._starts[part])

    def __iter__(self) -> Iterator[str]:
        for prefix, (start, stop) in zip(self._prefixes, pairwise(self._starts), strict=True):
            for row in range(stop - start):
                yield _name(prefix, row)


def _name(prefix: str, row: int) -> str:
    return f"{prefix}/{row:0{_WIDTH}d}" if prefix else f"{row:0{_WIDTH}d}"
