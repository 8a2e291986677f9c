"""The device clock: where the GPU's time goes, from events recorded between phases and read when they are done.

The host runs ahead of the GPU, so its own stamps say little. An event on the stream at the end of each phase makes
the intervals between events the device's phases: a device that starves shows it as a long `input`, one that lags
behind a fast host shows none. Events are polled a step or more later with `query`; nothing is ever synchronised, and
nothing recorded while a graph is being captured. Recording and reading events takes the host some hundred
microseconds a step, so only as many steps are followed as fit into a small share of its time.

An interval may hold gaps in which the device waited for the host's next launch. So in some steps it is held back before
one phase, which it then does without a gap (`held_back`); of such a step nothing else is told.
"""

import functools
import threading
from collections import deque
from types import ModuleType
from typing import Any

from topout.record.clock import now_ns
from topout.record.recorder import Recorder
from topout.record.row_names import QUEUED
from topout.record.torch_taps.held_back import PHASES, HeldBack
from topout.record.torch_taps.sizes import num_bytes_of
from topout.schema.event import NOT_GIVEN, Kind

_MAX_PENDING = 512
"""A device that lags further behind than this is not followed."""
_LARGEST_COST_SHARE = 0.001
"""Of the host's time as far as it is seen here; what events cost later launches comes on top, about thrice that."""
_NEVER = 1 << 62
GOES_ON = "goes on"
"""In place of a phase: a copy comes, and what was before it belongs to the phase that ends next."""
_HELD = "held"
"""In place of a phase: what was before is left out."""
_NUM_FIRST_STEPS = 10
"""Steps that are all followed, before their cost is known."""


def install(torch: ModuleType, recorder: Recorder) -> None:
    clock = DeviceClock(torch, recorder)
    recorder.mark = clock.mark
    recorder.at_step_end.append(clock.step_ended)
    recorder.at_finish.append(clock.poll)
    recorder.at_pulse.append(clock.record_memory)
    _tap_copies(torch, recorder)


class DeviceClock:
    """Marks phase ends on the current stream and turns them into DEVICE rows, in as many steps as it can afford."""

    def __init__(self, torch: ModuleType, recorder: Recorder) -> None:
        self._cuda = torch.cuda
        self._recorder = recorder
        self._pending: deque[tuple[str, Any, int, int]] = deque()
        self._spare: list[Any] = []
        self._last: tuple[Any, int] | None = None
        """The event before the oldest pending one, and its time on the recording's clock."""
        self._stream: Any = None
        """That steps run on."""
        self._held_back = HeldBack(torch)
        self._held_phase: str | None = None
        """The phase of this step that the device is held back for."""
        self._was_held = False
        self._since = now_ns()
        """When the host was through with the phase that ended last."""
        self._ended: set[str] = set()
        """That phase, or "" for a step, and copies since then: after them the next phase may begin."""
        self._parts: list[tuple[int, int]] = []
        """When parts of a phase began that copies cut, and how long they took."""
        self._next_step = 0
        self._cost_ns = 0
        self._last_followed_ns = now_ns()
        self._last_followed = 0

    def mark(self, phase: str) -> None:
        """`phase` ends here; `GOES_ON`: nothing does yet. In place only during steps that are followed."""
        start_ns = now_ns()
        try:
            self._record(phase, start_ns)
        except Exception as error:
            self._recorder.mark, self._next_step = None, _NEVER
            self._recorder.note(f"the device is not followed any more: {error}")
        self._cost_ns += now_ns() - start_ns

    def step_ended(self, step: int) -> None:
        """Reads what is done, and decides whether to follow the next step."""
        recorder = self._recorder
        if step == 0 and self._last_followed:
            self._begin_anew()
        if recorder.mark is not None:
            start_ns = now_ns()
            self.poll()
            self._plan(step, self._cost_ns + now_ns() - start_ns)
            self._cost_ns = 0
            self._ended, self._since = {""}, now_ns()
        recorder.mark = self.mark if step + 1 >= self._next_step else None
        if recorder.mark is not None and step + 1 > _NUM_FIRST_STEPS:
            self._choose_phase()
            self.mark("")  # where the step before ended, in case it was not followed

    def _choose_phase(self) -> None:
        """In every other step, and at first in several one after another."""
        held = self._held_back
        is_due = held.is_worth_while and (held.is_first_look or not self._was_held)
        self._held_phase = held.next_phase() if is_due else None
        self._was_held = is_due

    def _begin_anew(self) -> None:
        """The steps before were told by backward and were none; what was marked in them has numbers that come again."""
        self._pending.clear()
        self._last = self._held_phase = None
        self._next_step = self._last_followed = 0

    def poll(self) -> None:
        """Reads events up to the first that is not done."""
        pending = self._pending
        if not pending or self._cuda.is_current_stream_capturing():  # a query would break the capture
            return
        while pending and pending[0][1].query():
            phase, event, issued_ns, step = pending.popleft()
            if phase in ("", _HELD) or self._last is None:
                self._spare += [self._last[0]] if self._last is not None else []
                self._last = (event, issued_ns)
                self._parts = self._parts if phase == _HELD else []
                continue
            before, before_ns = self._last
            duration_ns = int(before.elapsed_time(event) * 1e6)
            self._tell(phase, before_ns, duration_ns, step)
            self._spare.append(before)
            self._last = (event, before_ns + duration_ns)

    def _tell(self, phase: str, start_ns: int, duration_ns: int, step: int) -> None:
        if phase == GOES_ON:
            self._parts.append((start_ns, duration_ns))
            return
        parts = [(start_ns, duration_ns)]
        if phase != "copy":
            parts, self._parts = [*self._parts, *parts], []
        code = self._recorder.code(Kind.DEVICE, phase)
        for began_ns, length_ns in parts:
            self._recorder.emit((code, began_ns, length_ns, NOT_GIVEN, step))

    def record_memory(self) -> None:
        if self._cuda.is_initialized():
            peak_bytes = self._cuda.max_memory_allocated()
            self._recorder.counter("device_allocated_bytes", self._cuda.memory_allocated())
            self._recorder.fact(peak_device_bytes=peak_bytes)

    def _record(self, phase: str, at_ns: int) -> None:
        cuda = self._cuda
        if not cuda.is_initialized() or cuda.is_current_stream_capturing() or len(self._pending) >= _MAX_PENDING:
            return
        if threading.get_ident() != self._recorder.main_thread:
            return
        stream = cuda.current_stream()
        if self._stream is not None and stream.device != self._stream.device:
            # a part of the step on another GPU, whose events have no time in common with these
            return
        if phase not in ("copy", GOES_ON):
            self._stream = stream
        elif stream != self._stream:
            # a loader that copies ahead on a stream of its own: its events are in no order with the step's
            return
        if phase in PHASES and self._held_phase is None:
            launched_ns, is_dry = at_ns - self._since, stream.query()
            self._held_back.saw(phase, after=self._ended, launched_ns=launched_ns, is_dry=is_dry)
        self._append(self._told(phase), at_ns)
        if self._held_phase is not None and (held_ns := self._held_back.hold_for(self._held_phase, after=phase)):
            self._cost_ns += held_ns
            self._append(_HELD, at_ns)
        if phase == "copy":
            self._ended.add(phase)
        elif phase != GOES_ON:
            self._ended, self._since = {phase}, now_ns()

    def _append(self, phase: str, at_ns: int) -> None:
        event = self._spare.pop() if self._spare else self._cuda.Event(enable_timing=True)
        event.record()
        self._pending.append((phase, event, at_ns, self._recorder.num_steps))

    def _told(self, phase: str) -> str:
        """Of a step that the device is held back in: that phase alone, and what copies cut of it."""
        if self._held_phase is None or phase == GOES_ON:
            return phase
        if phase == self._held_phase:
            return f"{phase}{QUEUED}"
        return _HELD if phase == "copy" else ""

    def _plan(self, step: int, cost_ns: int) -> None:
        """The next step to follow: so far ahead that following costs a small share of the time between."""
        if step + 1 < _NUM_FIRST_STEPS:
            self._next_step = step + 1
            return
        at_ns = now_ns()
        step_ns = max(1, (at_ns - self._last_followed_ns) // max(1, step + 1 - self._last_followed))
        self._last_followed_ns, self._last_followed = at_ns, step + 1
        is_looking = self._held_back.is_worth_while and self._held_back.is_first_look
        self._next_step = step + (1 if is_looking else max(1, round(cost_ns / (_LARGEST_COST_SHARE * step_ns))))


def _tap_copies(torch: ModuleType, recorder: Recorder) -> None:
    """`Tensor.to` and `Tensor.cuda` from the host: how many bytes went, and when the device had them.

    The host's own time says little: a copy from pageable memory waits until the device has caught up.
    """
    copied = recorder.code(Kind.COPY)

    def names_gpu(*given: Any) -> bool:
        """Whether a tensor goes to a GPU; most that `to` is called for, in a data set, stay on the host."""
        for value in given:
            if isinstance(value, torch.Tensor):
                return bool(value.is_cuda)
            if isinstance(value, str | torch.device):
                return str(value).startswith("cuda")
        return any(type(value) is int for value in given)

    def tapped(original: Any, *, is_cuda_call: bool) -> Any:
        @functools.wraps(original)
        def copy(self: Any, *args: Any, **kwargs: Any) -> Any:
            if recorder.mark is None or self.is_cuda or torch.compiler.is_compiling():
                return original(self, *args, **kwargs)
            if recorder.has_begun and (is_cuda_call or names_gpu(*args, *kwargs.values())):
                recorder.mark(GOES_ON)
            start_ns = now_ns()
            result = original(self, *args, **kwargs)
            if result.is_cuda and recorder.has_begun and recorder.mark is not None:
                recorder.span(copied, start_ns, num_bytes_of(result))
                recorder.mark("copy")
            return result

        return copy

    torch.Tensor.to = tapped(torch.Tensor.to, is_cuda_call=False)
    torch.Tensor.cuda = tapped(torch.Tensor.cuda, is_cuda_call=True)
