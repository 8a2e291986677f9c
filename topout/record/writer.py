"""Appends events to a file in whole blocks; a failing disk ends the recording, never the training.

Rows gather in memory and leave in one write a second or when a few thousand are waiting, so that a reader sees a live
run and a crash costs at most the last second.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Callable

from topout.schema.block import BlockType, seal
from topout.schema.event import COLUMNS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

LIMIT_BYTES = 512 << 20
"""A recording does not grow beyond this: about two million steps."""
_ROWS_WAITING = 4096
_WIDTH = len(COLUMNS)


class EventWriter:
    """One event file. `on_failure` hears one sentence when the file cannot be written any more."""

    def __init__(self, path: str | Path, on_failure: Callable[[str], None], limit_bytes: int = LIMIT_BYTES) -> None:
        self._path = path
        self._on_failure = on_failure
        self._limit_bytes = limit_bytes
        self._written_bytes = 0
        self._rows = array("q")
        self._names: dict[str, int] = {}
        self._num_names_written = 0
        self._blocks: list[bytes] = []
        self.emit = self._rows.extend
        """Takes one row as a tuple; bound once, because this is the hot path."""
        self._fd = -1
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            self._fail(error)

    @property
    def is_open(self) -> bool:
        return self._fd >= 0

    @property
    def num_waiting(self) -> int:
        return len(self._rows)

    @property
    def is_full(self) -> bool:
        """Enough rows wait to be worth a write."""
        return len(self._rows) >= _ROWS_WAITING * _WIDTH

    def name_id(self, name: str) -> int:
        found = self._names.get(name)
        if found is None:
            found = self._names[name] = len(self._names) + 1
        return found

    def append(self, code: int, start_ns: int, duration_ns: int, value: int, ref: int) -> None:
        self.emit((code, start_ns, duration_ns, value, ref))

    def facts(self, facts: dict[str, Any]) -> None:
        self._blocks.append(seal(BlockType.FACTS, json.dumps(facts, default=str).encode()))

    def flush(self) -> None:
        """Everything gathered so far leaves for the file; names before the rows that use them."""
        blocks, self._blocks = self._blocks, []
        # before the names: other threads add some, and rows that use them
        num_values = len(self._rows)
        new_names = list(self._names)[self._num_names_written :]
        if new_names:
            blocks.append(seal(BlockType.NAMES, json.dumps([self._num_names_written + 1, *new_names]).encode()))
            self._num_names_written += len(new_names)
        if num_values:
            taken = self._rows[:num_values]
            del self._rows[:num_values]
            blocks.append(seal(BlockType.ROWS, b"".join(taken[i::_WIDTH].tobytes() for i in range(_WIDTH))))
        if blocks and self._fd >= 0:
            self._write(b"".join(blocks))

    def close(self) -> None:
        self.flush()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def forget(self) -> None:
        """Lets go without writing: what a forked child does, since the file belongs to its parent."""
        del self._rows[:]
        self._blocks.clear()
        self._fd = -1

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            self._fail(error)
            return
        self._written_bytes += len(data)
        if self._written_bytes > self._limit_bytes:
            self._stop(f"recording stopped at its limit of {self._limit_bytes >> 20} MiB; later steps are not in it")

    def _fail(self, error: OSError) -> None:
        self._stop(f"recording stopped: {error.strerror or error} ({os.path.basename(self._path)}); training goes on")  # noqa: PTH119

    def _stop(self, reason: str) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
        self._on_failure(reason)
