"""A rank's status page: one page of memory that the rank writes and its launcher reads, even when the rank is stopped.

Not for data and not a message queue: a reader sees the latest values only. The launcher makes the page and hands it
down as a file descriptor; whoever is not the rank itself (a forked loader worker, a child program) never writes it.

Layout, 4096 bytes, little endian. Ten words of 8 bytes, each written alone and so never torn:

      0  "TOPPAGE" and the version of this layout    40  end of the first step (monotonic ns; 0 = none yet)
      8  stacks asked for, a count (by the launcher) 48  end of the last step
     16  stacks given, a count                       56  the lookout's last look
     24  process number, 0 until the rank attaches   64  last sign of progress other than a step
     32  steps so far                                72  1 when torch's process group stands

Sections of several values begin with a counter that is odd while they are written; a reader that meets an odd one, or
a different one after reading, keeps what it read before:

    128  the last collective that the script called: begun ns, left ns (0 = inside it), number in its group, bytes
         (-1 = not known), operation, group
    256  the oldest collective that is not over, from the flight recorder: begun ns, 0, and the same
    384  where the main thread is: since ns, phase, innermost line of the script, innermost line of all
   1024  up to 16 process groups: name, collectives reached, completed, changed ns
"""

from __future__ import annotations

import mmap
import os
import struct
from _thread import allocate_lock

from topout.record.clock import now_ns
from topout.schema.ignoring import ignoring
from topout.schema.light_dataclass import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from topout.record.page_snapshot import Call, Position, Snapshot

PAGE_FD = "TOPOUT_PAGE_FD"
PAGE_BYTES = 4096
MOST_GROUPS = 16
_MAGIC = int.from_bytes(b"TOPPAGE\x01", "little")
_MAGIC_WORD, _ASKED, _ANSWERED, _PID, _STEPS, _FIRST_STEP, _STEP, _LOOK, _STIR, _HAS_GROUP = range(10)
_TRIES = 4


@dataclass(frozen=True)
class _Section:
    """Where a section's counter stands, and what follows it."""

    start: int
    layout: struct.Struct


_CALL_LAYOUT = struct.Struct("<qqqq32s32s")
_CALLED = _Section(128, _CALL_LAYOUT)
_PENDING = _Section(256, _CALL_LAYOUT)
_PLACE = _Section(384, struct.Struct("<q16s240s240s"))
_GROUP = struct.Struct("<40sqqq")
_GROUPS = _Section(1024, struct.Struct(f"<{_GROUP.size * MOST_GROUPS}s"))
_LEFT_WORD = (_CALLED.start + 16) // 8


class StatusPage:
    """One page. Without shared memory behind it (`private`) it takes writes that nobody reads."""

    def __init__(self, memory: mmap.mmap | None) -> None:
        self._attach(memory)
        self._calling = allocate_lock()
        self._kept: dict[int, tuple[Any, ...]] = {}
        self._of_parents: list[mmap.mmap | None] = []
        """With a mapping would go the descriptor that Python holds for it, whose number may be the script's by now."""

    @classmethod
    def create(cls) -> tuple[StatusPage, int]:
        """The launcher's page, and the descriptor to pass on to the rank and then to close."""
        fd = _new_memory()
        os.ftruncate(fd, PAGE_BYTES)
        page = cls(mmap.mmap(fd, PAGE_BYTES))
        page._words[_MAGIC_WORD] = _MAGIC
        return page, fd

    @classmethod
    def from_environment(cls) -> StatusPage | None:
        """The page handed to this process, which from now on is its writer; None without one, or of another layout."""
        text = os.environ.pop(PAGE_FD, "")
        if not text.isdigit():
            return None
        try:
            memory = mmap.mmap(int(text), PAGE_BYTES)
            os.close(int(text))
        except (OSError, ValueError):
            return None
        page = cls(memory)
        if page._words[_MAGIC_WORD] != _MAGIC:
            page.close()
            return None
        page._words[_PID] = os.getpid()
        return page

    @classmethod
    def private(cls) -> StatusPage:
        return cls(None)

    def detach(self) -> None:
        """From here on nothing reaches the shared page: for a forked child, whose parent it describes."""
        self._of_parents.append(self._memory)
        self._attach(None)
        self._calling = allocate_lock()

    def close(self) -> None:
        memory = self._memory
        self._attach(None)
        if memory is not None:
            with ignoring(BufferError):
                memory.close()

    def _attach(self, memory: mmap.mmap | None) -> None:
        self._memory = memory
        self._bytes = memoryview(memory if memory is not None else bytearray(PAGE_BYTES))
        self._words = self._bytes.cast("q")

    # the rank writes

    def step(self, num_steps: int, at_ns: int) -> None:
        words = self._words
        words[_STEPS] = num_steps
        words[_STEP] = at_ns
        if num_steps == 1:
            words[_FIRST_STEP] = at_ns

    def enter(self, operation: bytes, group: bytes, sequence: int, num_bytes: int, at_ns: int) -> None:
        """The script calls a collective. Two threads at once: the first is kept, and nobody waits."""
        if self._calling.acquire(blocking=False):
            try:
                self._write(_CALLED, at_ns, 0, sequence, num_bytes, operation, group)
            finally:
                self._calling.release()

    def leave(self, at_ns: int) -> None:
        self._words[_LEFT_WORD] = at_ns

    def put_place(self, phase: str, line: str, inner: str, since_ns: int) -> None:
        self._write(_PLACE, since_ns, phase.encode(), line.encode(), inner.encode())

    def put_pending(self, operation: str, group: str, sequence: int, num_bytes: int, since_ns: int) -> None:
        self._write(_PENDING, since_ns, 0, sequence, num_bytes, operation.encode(), group.encode())

    def clear_pending(self) -> None:
        self._write(_PENDING, 0, 0, 0, 0, b"", b"")

    def put_groups(self, rows: Sequence[tuple[str, int, int, int]], *, has_process_group: bool) -> None:
        """(name, reached, completed, changed ns) of each; beyond `MOST_GROUPS` those that changed last."""
        kept = sorted(rows, key=lambda row: row[3], reverse=True)[:MOST_GROUPS]
        packed = (_GROUP.pack(name.encode(), *numbers) for name, *numbers in kept)
        self._write(_GROUPS, b"".join(packed))
        self._words[_HAS_GROUP] = has_process_group

    def stir(self, at_ns: int) -> None:
        """Something moved that is not a step: a batch, a collective, a save."""
        self._words[_STIR] = at_ns

    def beat(self, at_ns: int) -> None:
        self._words[_LOOK] = at_ns

    @property
    def num_asked(self) -> int:
        return self._words[_ASKED]

    @property
    def num_answered(self) -> int:
        return self._words[_ANSWERED]

    def answer(self, number: int) -> None:
        self._words[_ANSWERED] = number

    # the launcher writes and reads

    def ask(self) -> int:
        """Asks the rank for its stacks; the number that its answer will bear."""
        self._words[_ASKED] += 1
        return self._words[_ASKED]

    def read(self, at_ns: int | None = None) -> Snapshot | None:
        """What the rank last said of itself; None until it has attached."""
        # the rank itself, which must start at once, never reads
        from topout.record.page_snapshot import Snapshot

        words = self._words
        if words[_MAGIC_WORD] != _MAGIC or words[_PID] == 0:
            return None
        at_ns = now_ns() if at_ns is None else at_ns
        num_steps, first_ns, step_ns = words[_STEPS], words[_FIRST_STEP], words[_STEP]
        since_ns, phase, line, inner = self._read(_PLACE) or (0, b"", b"", b"")
        called, pending = self._read(_CALLED), self._read(_PENDING)
        return Snapshot(
            num_steps=num_steps,
            step_age_s=_age_s(step_ns, at_ns),
            usual_step_s=(step_ns - first_ns) / 1e9 / (num_steps - 1) if num_steps > 1 and first_ns else None,
            stir_age_s=_age_s(words[_STIR], at_ns),
            look_age_s=_age_s(words[_LOOK], at_ns),
            phase=_text(phase),
            line=_text(line),
            inner=_text(inner),
            place_age_s=_age_s(since_ns, at_ns),
            called=_call(called, at_ns),
            is_inside=called is not None and called[0] != 0 and called[1] == 0,
            pending=_call(pending, at_ns),
            positions=_positions(self._read(_GROUPS), at_ns),
            has_process_group=bool(words[_HAS_GROUP]),
            num_answered=words[_ANSWERED],
        )

    # sections

    def _write(self, section: _Section, *values: Any) -> None:
        words, counter = self._words, section.start // 8
        count = words[counter] & ~1  # one left odd by a write that broke off is taken up again
        words[counter] = count + 1
        section.layout.pack_into(self._bytes, section.start + 8, *values)
        words[counter] = count + 2

    def _read(self, section: _Section) -> tuple[Any, ...] | None:
        """The section's values, or those of the last whole one when the rank stands in the middle of writing it."""
        counter = section.start // 8
        for _ in range(_TRIES):
            before = self._words[counter]
            values = section.layout.unpack_from(self._bytes, section.start + 8)
            # read twice: another processor may see the counter and the values in another order than they were written
            again = section.layout.unpack_from(self._bytes, section.start + 8)
            if before % 2 == 0 and values == again and self._words[counter] == before:
                self._kept[counter] = values
                return values
        return self._kept.get(counter)


def _new_memory() -> int:
    try:
        return os.memfd_create("topout-page", os.MFD_CLOEXEC)
    except (AttributeError, OSError):
        import tempfile

        fd, path = tempfile.mkstemp(prefix="topout-page-")
        os.unlink(path)  # noqa: PTH108  (as mkstemp gives it)
        return fd


def _age_s(then_ns: int, at_ns: int) -> float | None:
    return _since_s(then_ns, at_ns) if then_ns else None


def _since_s(then_ns: int, at_ns: int) -> float:
    """To the millisecond: it travels as text."""
    return round(max(0, at_ns - then_ns) / 1e9, 3)


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode(errors="ignore")


def _call(values: tuple[Any, ...] | None, at_ns: int) -> Call | None:
    from topout.record.page_snapshot import Call

    if values is None or values[0] == 0:
        return None
    begun_ns, _, sequence, num_bytes, operation, group = values
    return Call(
        operation=_text(operation),
        group=_text(group),
        sequence=sequence if sequence >= 0 else None,
        num_bytes=num_bytes if num_bytes >= 0 else None,
        age_s=_since_s(begun_ns, at_ns),
    )


def _positions(values: tuple[Any, ...] | None, at_ns: int) -> tuple[Position, ...]:
    from topout.record.page_snapshot import Position

    rows = _GROUP.iter_unpack(values[0]) if values is not None else ()
    return tuple(
        Position(group=_text(name), reached=reached, completed=completed, age_s=_since_s(changed_ns, at_ns))
        for name, reached, completed, changed_ns in rows
        if name[0]
    )
