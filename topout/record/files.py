"""Counts the files a rank and its loader workers open, and the folders they list, through Python's audit hook.

Workers are forked, so each gets a slot of its own in memory shared with the rank; nothing is sent. Files opened by C
libraries behind Python's back are not seen; the sampler's system-call counters are there for those.
"""

from __future__ import annotations

import mmap
import os
import sys

from topout.schema.light_array import array

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SLOTS = 1024
_WORDS = 2


class FileCounts:
    """File opens and directory scans of this process and of the processes it forks."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, _SLOTS * _WORDS * 8)
        self._counts = memoryview(self._shared).cast("q")
        self._slot = 0
        self._next_slot = 1

    def install(self) -> None:
        os.register_at_fork(before=self._before_fork, after_in_child=self._after_fork)
        counts = self._counts

        # an audit hook can never be removed and sees every event of the interpreter: leave it as short as can be
        def hook(event: str, _arguments: tuple[Any, ...]) -> None:
            if event == "open":
                counts[self._slot] += 1
            elif event in ("os.listdir", "os.scandir"):
                counts[self._slot + 1] += 1

        sys.addaudithook(hook)

    def totals(self) -> tuple[int, int]:
        """(file opens, directory scans) so far, over all slots."""
        counts = array("q", self._counts)
        return sum(counts[0::_WORDS]), sum(counts[1::_WORDS])

    def _before_fork(self) -> None:
        # many short-lived workers share the last slot; their counts then add up there, possibly losing a few
        self._next_slot = min(self._next_slot + 1, _SLOTS - 1)

    def _after_fork(self) -> None:
        self._slot = self._next_slot * _WORDS
