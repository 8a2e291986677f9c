"""Appends events to a file in whole blocks; a failing disk ends the recording, never the training.

Rows gather in memory and leave in one write a second or when a few thousand are waiting, so that a reader sees a live
run and a crash costs at most the last second. A file that reaches its limit begins anew with its newest part: what a
run is judged by comes last, such as arrivals at collectives, which are known of the last steps only.
"""

from __future__ import annotations

import os
from _thread import RLock, allocate_lock

from topout.record.held_file import HeldFile
from topout.schema.block import BlockType, seal
from topout.schema.event import COLUMNS
from topout.schema.light_array import array
from topout.schema.light_json import dumps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

LIMIT_BYTES = 512 << 20
"""A recording does not grow beyond this: about two million steps."""
_KEPT_SHARE = 16
"""One part of so many is kept then: more steps than torch's flight recorder remembers collectives, and written within
a moment."""
_ROWS_WAITING = 4096
_CLOSE_S = 1.0
"""For another thread that is writing; a disk that does not answer must not hold up the end."""
_WIDTH = len(COLUMNS)


class EventWriter:
    """One event file. `on_failure` hears one sentence when the file cannot be written any more, `on_limit` one when its
    oldest part goes."""

    def __init__(
        self,
        path: str | Path,
        on_failure: Callable[[str], None],
        limit_bytes: int = LIMIT_BYTES,
        on_limit: Callable[[str], None] | None = None,
    ) -> None:
        self._path = path
        self._on_failure = on_failure
        self._on_limit = on_limit
        self._limit_bytes = limit_bytes
        self._written_bytes = 0
        self._kept_from = 0
        """Where the part begins that stays when the limit is reached."""
        self._facts: dict[str, Any] = {}
        self._num_taken = 0
        self._rows = array("q")
        self._names: dict[str, int] = {}
        self._naming = RLock()
        """A signal's handler may bring a name while its thread does."""
        self._num_names_written = 0
        self._told: list[bytes] = []
        """Facts that wait."""
        self.emit = self._rows.extend
        """Takes one row as a tuple; bound once, because this is the hot path."""
        self._flushing = allocate_lock()
        self._file: HeldFile | None = None
        try:
            self._file = self._open(self._path)
        except OSError as error:
            self._fail(error)

    @property
    def is_open(self) -> bool:
        return self._file is not None

    @property
    def num_values(self) -> int:
        """Of all rows so far, those that have left included: it changes with each row."""
        return self._num_taken + len(self._rows)

    @property
    def is_full(self) -> bool:
        """Enough rows wait to be worth a write."""
        return len(self._rows) >= _ROWS_WAITING * _WIDTH

    def name_id(self, name: str) -> int:
        found = self._names.get(name)
        if found is None:
            with self._naming:
                found = self._names.setdefault(name, len(self._names) + 1)
        return found

    def append(self, code: int, start_ns: int, duration_ns: int, value: int, ref: int) -> None:
        self.emit((code, start_ns, duration_ns, value, ref))

    def facts(self, facts: dict[str, Any]) -> None:
        self._told.append(_encoded(facts))
        self._facts.update(facts)

    def flush(self, *, wait_s: float = 0.0) -> None:
        """Everything gathered so far leaves for the file, unless another thread is at it already."""
        if not self._flushing.acquire(timeout=wait_s):
            return
        try:
            blocks = self._take()
            if blocks and self._file is not None:
                self._write(b"".join(blocks))
        finally:
            self._flushing.release()

    def close(self) -> None:
        self.flush(wait_s=_CLOSE_S)
        self._let_go()

    def forget(self) -> None:
        """Lets go without writing: what a forked child does, since the file belongs to its parent."""
        del self._rows[:]
        self._told.clear()
        self._let_go()

    def _take(self) -> list[bytes]:
        """What waits, in blocks; names before the rows that use them."""
        # in place: another thread may be about to add to this list
        num_told = len(self._told)
        blocks = [seal(BlockType.FACTS, facts) for facts in self._told[:num_told]]
        del self._told[:num_told]
        # before the names: other threads add some, and rows that use them
        num_values = len(self._rows)
        new_names = list(self._names)[self._num_names_written :]
        if new_names:
            blocks.append(_names_block(self._num_names_written + 1, new_names))
            self._num_names_written += len(new_names)
        if num_values:
            taken = self._rows[:num_values]
            del self._rows[:num_values]
            self._num_taken += num_values
            blocks.append(seal(BlockType.ROWS, b"".join(taken[i::_WIDTH].tobytes() for i in range(_WIDTH))))
        return blocks

    def _open(self, path: str | Path) -> HeldFile:
        return HeldFile(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644))

    def _write(self, data: bytes) -> None:
        try:
            if self._file is None or not self._file.is_ours:
                # the script closed all that was open
                self._file = self._open(self._path)
            self._file.write(data)
        except OSError as error:
            self._fail(error)
            return
        self._written_bytes += len(data)
        if self._written_bytes <= self._limit_bytes - self._limit_bytes // _KEPT_SHARE:
            self._kept_from = self._written_bytes
        elif self._written_bytes > self._limit_bytes:
            self._begin_anew()

    def _begin_anew(self) -> None:
        limit = f"its limit of {self._limit_bytes >> 20} MiB"
        try:
            self._keep_newest(f"{self._path}.new")
        except OSError:
            self._stop(f"recording stopped at {limit}; later steps are not in it")
            return
        if self._on_limit is not None:
            self._on_limit(f"the recording reached {limit}: its beginning is left out")

    def _keep_newest(self, spare: str) -> None:
        """Under another name first: a reader has the old file or the new one, each whole."""
        with open(self._path, "rb") as old:
            old.seek(self._kept_from - self._written_bytes, os.SEEK_END)
            kept = old.read()
        names = _names_block(1, list(self._names)[: self._num_names_written])
        # facts last, since the kept part may hold older values
        parts = [names, kept, seal(BlockType.FACTS, _encoded(dict(self._facts)))]
        new = self._open(spare)
        try:
            for part in parts:
                new.write(part)
            os.replace(spare, self._path)  # noqa: PTH105
        except OSError:
            new.close()
            os.unlink(spare)  # noqa: PTH108
            raise
        self._let_go()
        self._file, self._written_bytes, self._kept_from = new, sum(map(len, parts)), 0

    def _fail(self, error: OSError) -> None:
        # without the file's name: what all ranks say alike is told once
        self._stop(f"recording stopped: {error.strerror or error}; training goes on")

    def _stop(self, reason: str) -> None:
        self._let_go()
        self._on_failure(reason)

    def _let_go(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


def _encoded(facts: dict[str, Any]) -> bytes:
    return dumps(facts, default=str).encode()


def _names_block(first: int, names: list[str]) -> bytes:
    return seal(BlockType.NAMES, dumps([first, *names]).encode())
