"""When to stop: what `topout.should_stop()` answers, on all ranks at the same step.

The warning signal reaches launchers, never the training itself. The launchers of a job agree on the number of a call
(`launch.stop_agreement`) and write it into a page that they share with their ranks; a rank counts its calls there and
answers True from that number on. Ranks that answered True at different steps would wait for each other for ever.

Not for a checkpoint inside a signal handler: a handler may run in the middle of an allocation or a collective. The only
handlers set here are those of a script without a launcher and without other ranks, and they set a flag.
"""

from __future__ import annotations

import mmap
import os
import time

from topout.host.c_library import c_function
from topout.schema.light_signal import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Protocol

    class Words(Protocol):
        """Shared memory as whole numbers."""

        def __getitem__(self, at: int) -> int: ...
        def __setitem__(self, at: int, value: int) -> None: ...
        def __len__(self) -> int: ...


PAGE_VARIABLE = "TOPOUT_STOP_PAGE"
"""`FD:SLOT` or `PATH:SLOT`: the page, and which of its ranks this process is."""

_MAGIC = 0x31504F5453504F54
"""TOPSTOP1 in the bytes of a little-endian machine; the page never leaves its host."""
_WORD_BYTES = 8
_STOP_AT = 1
_FIRST_RANK = 2
_WORDS_PER_RANK = 2
WARNINGS = (signal.SIGUSR1, signal.SIGUSR2)
UNDECIDED = 0
AGREEING = -1
_SETTLING_S = 0.01
"""A core's pending store is seen by the others far earlier; then a count read after it misses no call."""
_LOOK_EVERY_S = 0.001


class StopPage:
    """The page of one host's ranks, of native int64: magic, stop at, and for each rank its calls and where it was told.

    `stop at` is written by the launcher alone: UNDECIDED, AGREEING, or the number of the call from which on the answer
    is True. A rank's two words are written by that rank alone. Aligned words are read and written whole.
    """

    def __init__(self, fd: int, words: Words) -> None:
        self.fd = fd
        self._words = words

    @classmethod
    def create(cls, num_ranks: int) -> StopPage:
        """The launcher's; its `fd` has to be passed on to the ranks."""
        fd = _anonymous_file()
        os.ftruncate(fd, (_FIRST_RANK + _WORDS_PER_RANK * num_ranks) * _WORD_BYTES)
        page = cls(fd, _map(fd))
        page._words[0] = _MAGIC
        return page

    def variable(self, slot: int) -> str:
        """What PAGE_VARIABLE says to the rank of this slot."""
        return f"{self.fd}:{slot}"

    def freeze(self) -> int:
        """From now on no rank passes a call; returns the highest call that any of them has entered."""
        self._words[_STOP_AT] = AGREEING
        time.sleep(_SETTLING_S)
        return max(self.calls(), default=0)

    def decide(self, call: int) -> None:
        """The answer is True from this call on; those below it are let go."""
        self._words[_STOP_AT] = call

    def withdraw(self) -> None:
        """No agreement came about: the ranks go on as if nobody had asked."""
        self._words[_STOP_AT] = UNDECIDED

    @property
    def stop_at(self) -> int | None:
        """The call that was agreed on, or None."""
        agreed = self._words[_STOP_AT]
        return agreed if agreed > 0 else None

    def calls(self) -> list[int]:
        """How often each rank has asked."""
        return [self._words[at] for at in range(_FIRST_RANK, len(self._words), _WORDS_PER_RANK)]

    @property
    def has_told(self) -> bool:
        """Whether a rank was told to stop; one that ended before that ended by itself."""
        return any(self._words[at + 1] for at in range(_FIRST_RANK, len(self._words), _WORDS_PER_RANK))

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class RankStop:
    """A rank's side of the page."""

    def __init__(self, words: Words, slot: int) -> None:
        self._words = words
        self._calls_at = _FIRST_RANK + _WORDS_PER_RANK * slot
        self._calls = 0
        self._launcher = os.getppid()

    @classmethod
    def adopt(cls, text: str) -> RankStop | None:
        """From what PAGE_VARIABLE says; None when that is no page with such a slot."""
        place, _, slot = text.rpartition(":")
        try:
            fd = int(place) if place.isdigit() else os.open(place, os.O_RDWR)
            words = _map(fd)
            os.close(fd)
        except (OSError, ValueError, TypeError):
            return None
        is_ours = slot.isdigit() and len(words) >= _FIRST_RANK + _WORDS_PER_RANK * (int(slot) + 1)
        return cls(words, int(slot)) if is_ours and words[0] == _MAGIC else None

    def should_stop(self) -> bool:
        # first the count, then the look: a launcher that froze the page before the look finds this call counted
        self._calls = calls = self._calls + 1
        self._words[self._calls_at] = calls
        if self._words[_STOP_AT] == UNDECIDED:
            return False
        return self._answer(calls)

    def _answer(self, calls: int) -> bool:
        """Waits for the decision, which takes a round trip between launchers and needs no progress of any rank."""
        while (stop_at := self._words[_STOP_AT]) == AGREEING:
            if os.getppid() != self._launcher:
                # nobody is left to decide, nor to end this rank
                return False
            time.sleep(_LOOK_EVERY_S)
        if stop_at == UNDECIDED or calls < stop_at:
            return False
        self._words[self._calls_at + 1] = calls
        return True


class SignalledStop:
    """A script of one process without a launcher: SIGUSR1 and SIGUSR2 ask it to stop, unless it handles them itself."""

    def __init__(self) -> None:
        self._is_asked = False
        for number in WARNINGS:
            if signal.getsignal(number) == signal.SIG_DFL:
                try:
                    signal.signal(number, self._ask)
                except ValueError:
                    # outside the main thread Python sets no handlers
                    return

    def should_stop(self) -> bool:
        return self._is_asked

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._is_asked = True


def _never() -> bool:
    return False


def _first_call() -> bool:
    global _answer
    if _answer is _first_call:
        _answer = _find()
    return _answer()


_answer: Callable[[], bool] = _first_call
_of_parents: list[Callable[[], bool]] = []
"""Kept by forked children: with the page would go the descriptor that Python holds for it, maybe the script's."""


def should_stop() -> bool:
    """See `topout.should_stop`."""
    return _answer()


def adopt_page() -> None:
    """Takes the page out of the environment, before children of the script could take it for theirs."""
    global _answer
    if PAGE_VARIABLE in os.environ:
        _answer = _find()
        _survive_warnings()


def _survive_warnings() -> None:
    """srun and scancel send a warning to every process of a step, and one that does not handle it would end by it.

    Ignored behind Python's back, children included: whoever looks whether these signals are free, as Lightning does
    before it sets its own handlers, must find that they are.
    """
    set_handler = c_function("signal")
    for number in WARNINGS:
        if set_handler is not None and signal.getsignal(number) == signal.SIG_DFL:
            set_handler(number, int(signal.SIG_IGN))


def _find() -> Callable[[], bool]:
    text = os.environ.pop(PAGE_VARIABLE, None)
    if text is not None:
        rank = RankStop.adopt(text)
        if rank is not None:
            os.register_at_fork(after_in_child=_leave_child)
        return rank.should_stop if rank is not None else _never
    if os.environ.get("WORLD_SIZE", "1") not in ("", "1"):
        import warnings

        warnings.warn(
            "topout.should_stop() answers False: several ranks agree on a step only under topout run",
            RuntimeWarning,
            stacklevel=5,
        )
        return _never
    return SignalledStop().should_stop


def _leave_child() -> None:
    """A forked child (a loader worker) is no rank: its calls must not count as its parent's."""
    global _answer
    _of_parents.append(_answer)
    _answer = _never


def _anonymous_file() -> int:
    try:
        return os.memfd_create("topout-stop")
    except (AttributeError, OSError):
        import tempfile

        fd, path = tempfile.mkstemp()
        os.unlink(path)  # noqa: PTH108  (a descriptor stays, no path)
        return fd


def _map(fd: int) -> Words:
    return memoryview(mmap.mmap(fd, os.fstat(fd).st_size)).cast("q")
