"""The memory that batches are written into, used again and again, and never while anybody still looks at it.

A slab goes back when the last tensor, view or saved activation over it is gone: tensors are made over a numpy view
whose end can be watched. So a script may keep batches as long as it likes; it costs memory, not correctness. Pinned
slabs wait besides for copies that the script queued (`fence`).
"""

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from topout.feed.pipeline import Buffers

Array = np.ndarray[Any, Any]


class Slab:
    """Arrays for one batch."""

    def __init__(self, arrays: dict[str, Array], lists: tuple[str, ...], keep: Any = None) -> None:
        self.buffers = Buffers(arrays=arrays, lists={name: [] for name in lists})
        self.keep = keep
        """Whatever owns the memory of the arrays."""
        self.fence: Callable[[], None] | None = None
        """Waits until nothing queued reads the slab any more."""
        self._watched: list[weakref.ref[Array]] = []

    def views(self, num_rows: int, done: Callable[["Slab"], None]) -> dict[str, Array]:
        """Views of the first rows; `done` is called once all of them, and all tensors over them, are gone."""
        views = {name: array[:num_rows] for name, array in self.buffers.arrays.items()}
        # several threads may drop views at once; list.pop is atomic, and whoever gets the first entry was the last
        entries = [True] + [False] * (len(views) - 1)

        def gone(_reference: object) -> None:
            if entries.pop():
                done(self)

        self._watched = [weakref.ref(view, gone) for view in views.values()]
        return views


class SlabPool:
    """Makes slabs when none is free, so taking one never waits for the script to let go.

    Where `cools`, slabs that came back are used again only after `cool`: the script has asked for another batch since,
    and copies it had queued by then are waited for.
    """

    def __init__(self, make: Callable[[], Slab], *, cools: bool = False) -> None:
        self._make = make
        self.cools = cools
        self._free: deque[Slab] = deque()
        self._cooling: deque[Slab] = deque()
        self._back = self._cooling if cools else self._free
        self.num_made = 0

    def take(self) -> Slab:
        """For one thread alone."""
        try:
            slab = self._free.popleft()
        except IndexError:
            self.num_made += 1
            return self._make()
        if slab.fence is not None:
            slab.fence()
            slab.fence = None
        return slab

    def give(self, slab: Slab) -> None:
        """Called when an object dies, from any thread, perhaps in the middle of `take`: so without a lock."""
        self._back.append(slab)

    def cool(self, make_fence: Callable[[], Callable[[], None]]) -> None:
        """Frees what has come back so far; `make_fence` is asked once, and not at all when nothing has."""
        fence = make_fence() if self._cooling else None
        for _ in range(len(self._cooling)):
            slab = self._cooling.popleft()
            slab.fence = fence
            self._free.append(slab)
