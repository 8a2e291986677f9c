"""The memory that batches are written into, used again and again, and never while anybody still looks at it.

A slab is used again when the last tensor, view or saved activation over it is gone: tensors are made over a numpy view,
and whether that still lives can be seen. So a script may keep batches as long as it likes; it costs memory, not
correctness. Pinned slabs wait besides for copies that the script queued (`fence`).
"""

import threading
import weakref
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

    def views(self, num_rows: int) -> dict[str, Array]:
        """Views of the first rows; as long as one of them lives, or a tensor over it, somebody looks at the slab."""
        views = {name: array[:num_rows] for name, array in self.buffers.arrays.items()}
        self._watched = [weakref.ref(view) for view in views.values()]
        return views

    @property
    def is_unseen(self) -> bool:
        return all(reference() is None for reference in self._watched)


class SlabPool:
    """Makes slabs when none is free, so taking one never waits for the script to let go.

    Where `cools`, slabs that came back are used again only after `cool`: the script has asked for another batch since,
    and copies it had queued by then are waited for. Which ones came back is looked up, not told by their end: code that
    runs when an object dies swallows a Ctrl-C that happens to come then.
    """

    def __init__(self, make: Callable[[], Slab], *, cools: bool = False) -> None:
        self._make = make
        self.cools = cools
        self._lent: list[Slab] = []
        self._cooling: list[Slab] = []
        self._free: list[Slab] = []
        self._lock = threading.Lock()
        self.num_made = 0

    def take(self) -> Slab:
        with self._lock:
            self._look()
            slab = self._free.pop() if self._free else None
            if slab is None:
                self.num_made += 1
        if slab is None:
            return self._make()
        if slab.fence is not None:
            slab.fence()
            slab.fence = None
        return slab

    def lend(self, slab: Slab) -> None:
        """The slab is the script's until nobody looks at its views any more."""
        with self._lock:
            self._lent.append(slab)

    def give(self, slab: Slab) -> None:
        """Nobody will look at the slab but what its fence waits for."""
        with self._lock:
            self._free.insert(0, slab)

    def cool(self, make_fence: Callable[[], Callable[[], None]]) -> None:
        """Frees what has come back so far; `make_fence` is asked once, and not at all when nothing has."""
        with self._lock:
            self._look()
            cooled, self._cooling = self._cooling, []
        if not cooled:
            return
        fence = make_fence()
        for slab in cooled:
            slab.fence = fence
        with self._lock:
            self._free.extend(cooled)

    def _look(self) -> None:
        back = [slab for slab in self._lent if slab.is_unseen]
        if back:
            self._lent = [slab for slab in self._lent if slab not in back]
            (self._cooling if self.cools else self._free).extend(back)
