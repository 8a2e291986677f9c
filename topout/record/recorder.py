"""The recorder of one rank: takes rows from the taps, keeps count of steps, writes once a second.

Everything here runs inside somebody's training loop. A method that a tap calls on every step appends one row and
returns; whatever may fail is noted and switched off, never raised.
"""

from __future__ import annotations

import os
from _thread import get_ident

from topout.record.clock import clock_pair, now_ns
from topout.record.files import FileCounts
from topout.record.lookout import Lookout
from topout.record.settings import Settings
from topout.record.status import StatusLine
from topout.record.status_page import StatusPage
from topout.record.writer import EventWriter
from topout.schema.event import NOT_GIVEN, Flag, Kind, pack_code
from topout.schema.run_folder import RunFolder, events_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from topout.record.lookout import GroupProgress
    from topout.record.set_batch import SetBatch
    from topout.record.torch_taps.backward_steps import BackwardSteps

_FLUSH_INTERVAL_NS = 1_000_000_000
_STEP = pack_code(Kind.STEP)
OFF_MAIN = pack_code(Kind.STEP, 0, Flag.OFF_MAIN_THREAD) - pack_code(Kind.STEP)
"""Added to the code of a row that a thread other than the main one wrote."""


class _LetGo:
    """Stands for a loader that is gone: what was known of it."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self._topout_facts = facts


class Recorder:
    """One rank's recording, from before the script's first line to after its last."""

    backwards: BackwardSteps | None = None
    """Tells steps by backward while nothing else has ended one; set by the backward tap."""
    count_flops_at = 1
    """The step in which a backward's operations are counted: the second one usually, in which lazily built layers
    exist, and which is warm-up still."""
    set_batch: SetBatch | None = None
    """The batch of `--batch`, and which loaders took it."""
    _steps_by_hand = False
    exit_code = 0
    """Of the script, once it is over."""
    is_of_rank = True
    """False in a child that the script forked: what it trains is its own affair."""

    def __init__(self, settings: Settings, status: StatusLine) -> None:
        self.settings = settings
        self.is_active = settings.record and settings.run is not None
        self.num_steps = 0
        self.notes: list[str] = []
        self.files = FileCounts()
        self.at_step_end: list[Callable[[int], None]] = []
        """Called with the step's number after each step; for what looks once a step (profiler, device events)."""
        self.at_pulse: list[Callable[[], None]] = []
        """Called about once a second, at the end of a step."""
        self.at_finish: list[Callable[[], None]] = []
        self.at_last: list[Callable[[], None]] = []
        """Called when all else is in the file: for what may take long, and may be cut off."""
        self.mark: Callable[[str], None] | None = None
        """Hears which phase ends now: the device clock, when there is a GPU."""
        self.num_optimizer_steps = 0
        self.skipped_step: Callable[[Any], None] | None = None
        """Counts a step that a gradient scaler left out; set by the optimizer tap."""
        self.unpacks_saved_tensors = False
        """The script offloads or recomputes activations: looking at saved tensors would run its code."""
        self.feeding: Any = None
        """The loader's iterator that handed out the last batch."""
        self.has_begun = False
        """Training has begun: a batch was fetched, or something ran backward."""
        self.is_evaluating = False
        """The model was last put into evaluation mode; set by the mode tap."""
        self.groups: GroupProgress | None = None
        """How far this rank is in its process groups; set by the tap of collectives."""
        self.communicating: set[int] = set()
        """Threads inside a collective, or a wait for one, that has a row of its own: what it is made of needs none."""
        self.main_thread = get_ident()
        self.step_start_ns = 0
        self._status = status
        self._facts: dict[str, Any] = {}
        self._clock_pairs = [clock_pair()]
        self._next_flush_ns = 0
        self._writer: EventWriter | None = None
        self.emit: Callable[[tuple[int, ...]], None] = _drop
        if self.is_active and settings.run is not None:
            writer = EventWriter(
                RunFolder(settings.run).inside(events_name(settings.rank)), self._lose_file, on_limit=self.note
            )
            if writer.is_open:
                self._writer = writer
                self.emit = writer.emit
                self.fact(
                    rank=settings.rank, host=os.uname().nodename, pid=os.getpid(), clock_pairs=[*self._clock_pairs]
                )
        given_page = StatusPage.from_environment()
        self.page = given_page or StatusPage.private()
        os.register_at_fork(after_in_child=self._leave_child)
        self._lookout: Lookout | None = None
        if given_page is not None and settings.record:
            self._lookout = Lookout(self, given_page)
            self._lookout.start()

    # rows

    def code(self, kind: Kind, name: str = "") -> int:
        """The code of rows of this kind and name; asked for once, then reused."""
        writer = self._writer  # the lookout may lose it meanwhile
        return pack_code(kind, writer.name_id(name) if writer is not None and name else 0)

    def span(self, code: int, start_ns: int, value: int = NOT_GIVEN, ref: int = NOT_GIVEN) -> None:
        """A row from `start_ns` until now, marked when it does not belong to the main thread."""
        if get_ident() != self.main_thread:
            code += OFF_MAIN
        self.emit((code, start_ns, now_ns() - start_ns, value, ref))

    @property
    def num_values(self) -> int:
        """Changes whenever a row is taken."""
        writer = self._writer
        return writer.num_values if writer is not None else 0

    def counter(self, name: str, value: int) -> None:
        self.emit((self.code(Kind.COUNTER, name), now_ns(), 0, value, NOT_GIVEN))

    # steps

    def begin_training(self, start_ns: int) -> None:
        """The first sign of training; the first step starts here."""
        if not self.has_begun:
            self.has_begun = True
            self.step_start_ns = start_ns

    def end_step(self, end_ns: int, *, by_hand: bool = False) -> None:
        """One step is over. Once a script says so itself (`topout.step`), optimizers no longer count."""
        if by_hand:
            self._steps_by_hand = True
        elif self._steps_by_hand:
            return
        if self.backwards is not None:
            self.backwards.give_way()
        self.close_step(_STEP, end_ns)

    def close_step(self, code: int, end_ns: int, *, is_past: bool = False) -> None:
        """Writes one step's row. Nobody who looks once a step hears of one that is long past."""
        number = self.num_steps
        self.emit((code, self.step_start_ns, end_ns - self.step_start_ns, NOT_GIVEN, number))
        self.step_start_ns = end_ns
        self.num_steps = number + 1
        self.page.step(number + 1, end_ns)
        if is_past:
            return
        if self.at_step_end:
            for callback in self.at_step_end:
                self.guard(callback, number)
        if end_ns >= self._next_flush_ns:
            self._pulse(end_ns)

    def number_anew(self, start_ns: int) -> None:
        """The steps so far were none; the first one began at `start_ns`."""
        self.num_steps = 0
        self.step_start_ns = start_ns

    def maybe_flush(self) -> None:
        """For loops that never end a step: memory stays bounded."""
        writer = self._writer
        if writer is not None and writer.is_full:
            self._pulse(now_ns())

    def flush_late(self) -> None:
        """The same, from the lookout once a second: whatever the loop calls, a kill leaves what was recorded."""
        if now_ns() >= self._next_flush_ns:
            self._flush()

    # facts and notes

    def fact(self, **facts: Any) -> None:
        """Something the rank knows about itself; a later value replaces an earlier one."""
        new = {key: value for key, value in facts.items() if self._facts.get(key) != value}
        writer = self._writer
        if new and writer is not None:
            self._facts.update(new)
            writer.facts(new)

    def known(self, key: str) -> Any:
        """What was last said about this fact, or None."""
        return self._facts.get(key)

    def note(self, text: str) -> None:
        """Something could not be recorded: said once, in the run folder and to the launcher."""
        if text not in self.notes:
            self.notes.append(text)
            self._status.send("note", text=text)
            self.fact(notes=list(self.notes))

    def tell(self, kind: str, **content: Any) -> None:
        self._status.send(kind, **content)

    # ends

    def let_go_of_loader(self) -> None:
        """A script that breaks off leaves torch to end workers with their iterator, which nobody else may hold then."""
        self.feeding = _LetGo(getattr(self.feeding, "_topout_facts", {}))

    def finish(self, exit_code: int = 0, give_time: Callable[[Callable[[], None]], None] | None = None) -> None:
        """The script is over: the last rows, facts and counts leave for the file.

        `give_time` calls what it is given, and keeps whoever ends quiet ranks from coming meanwhile.
        """
        self.exit_code = exit_code
        if self._lookout is not None:
            self._lookout.stop()
        self._flush()  # whatever the callbacks do, and however long they take
        for callback in self.at_finish:
            self.guard(callback)
        self._count_files()
        self._clock_pairs.append(clock_pair())
        self.fact(clock_pairs=self._clock_pairs, peak_resident_bytes=_peak_resident_bytes(), ended=True)
        if self.at_last:
            self._flush()
            give_time(self._finish_last) if give_time is not None else self._finish_last()
        writer = self._writer
        if writer is not None:
            writer.close()

    def _finish_last(self) -> None:
        while self.at_last:
            self.guard(self.at_last.pop(0))

    def guard(self, action: Callable[..., Any], *arguments: Any) -> Any:
        """Runs something that must not fail into training; a failure becomes a note."""
        try:
            return action(*arguments)
        except Exception as error:
            self.note(f"{getattr(action, '__name__', 'recorder')} failed: {type(error).__name__}: {error}")
            return None

    def _pulse(self, at_ns: int) -> None:
        self._next_flush_ns = at_ns + _FLUSH_INTERVAL_NS
        for callback in self.at_pulse:
            self.guard(callback)
        self._count_files()
        if len(self._clock_pairs) == 1:
            self._clock_pairs.append(clock_pair())
            self.fact(clock_pairs=list(self._clock_pairs))
        self._flush()

    def _flush(self) -> None:
        writer = self._writer
        if writer is not None:
            self.guard(writer.flush)

    def _count_files(self) -> None:
        opens, scans = self.files.totals()
        self.counter("file_opens", opens)
        self.counter("directory_scans", scans)

    def _lose_file(self, reason: str) -> None:
        self.emit = _drop
        self._writer = None
        self.is_active = False
        self.note(reason)

    def _leave_child(self) -> None:
        """A forked child (a loader worker) records nothing: the file and the pipe are its parent's."""
        self.is_active = self.is_of_rank = False
        self.emit = _drop
        self._status = StatusLine(None)
        self.at_step_end.clear()
        self.at_pulse.clear()
        self.mark = None
        self.page.detach()
        if self._writer is not None:
            self._writer.forget()
            self._writer = None


def _peak_resident_bytes() -> int | None:
    """Of this process; None where the kernel does not tell."""
    try:
        with open("/proc/self/status", "rb") as file:
            return next((int(line.split()[1]) * 1024 for line in file if line.startswith(b"VmHWM:")), None)
    except (OSError, ValueError):
        return None


def _drop(_row: Any, /) -> None:
    """Takes the place of `emit` when there is nowhere to write."""


_current: Recorder | None = None


def current() -> Recorder | None:
    """The recorder of this process, or None outside `topout run`."""
    return _current


def set_current(recorder: Recorder | None) -> None:
    global _current
    _current = recorder
