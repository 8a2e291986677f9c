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
from topout.record.row_names import DRY, LATE, QUEUED
from topout.record.torch_taps.held_back import PHASES, Begun, HeldBack, Place
from topout.record.torch_taps.next_call import NextCall
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
_MADE_BATCH = "made a batch"
"""The same as `GOES_ON` before the first copy, where the device had nothing left to do."""
_IDLE = 2
"""In place of whether a part ended dry: it is such a one."""
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
        self._is_grad_enabled = torch.is_grad_enabled
        self._recorder = recorder
        self._pending: deque[tuple[str, Any, int, int, int]] = deque()
        self._spare: list[Any] = []
        self._last: tuple[Any, int] | None = None
        """The event before the oldest pending one, and its time on the recording's clock."""
        self._stream: Any = None
        """That steps run on."""
        self._held_back = HeldBack(torch, world_size=recorder.settings.world_size)
        self._held_phase: str | None = None
        """The phase of this step that the device is held back for."""
        self._was_held = False
        """Since the phase before ended."""
        self._num_copies_before = 0
        """It was held back, since that phase."""
        self._next_call = NextCall(torch)
        self._num_allocated: int | None = None
        """When the next call was awaited."""
        self._spoiled: set[int] = set()
        """Steps in which it was not, or ran dry all the same."""
        self._late: set[int] = set()
        """Steps in which it may have gone on before the host had launched the phase."""
        self._begun = Begun(now_ns())
        self._parts: list[tuple[int, int, int]] = []
        """When parts of a phase began that copies cut, how long they took, and how they ended."""
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
            if self._held_phase is not None:
                self._next_call.forget()
                self._held_back.step_ended(is_spoiled=step in self._spoiled | self._late)
            self.poll()
            self._plan(step, self._cost_ns + now_ns() - start_ns)
            self._cost_ns = 0
            self._begun = Begun(now_ns())
        recorder.mark = self.mark if step + 1 >= self._next_step else None
        if recorder.mark is not None and step + 1 > _NUM_FIRST_STEPS:
            is_due = self._held_back.is_due(step + 1)
            self._held_phase = self._held_back.next_phase() if is_due else None
            self.mark("")  # where the step before ended, in case it was not followed

    def _begin_anew(self) -> None:
        """The steps before were told by backward and were none; what was marked in them has numbers that come again."""
        self._pending.clear()
        self._last = self._held_phase = None
        self._parts, self._spoiled, self._late = [], set(), set()
        self._next_step = self._last_followed = 0

    def poll(self) -> None:
        """Reads events up to the first that is not done."""
        pending = self._pending
        if not pending or self._cuda.is_current_stream_capturing():  # a query would break the capture
            return
        while pending and pending[0][1].query():
            phase, event, issued_ns, step, is_dry = pending.popleft()
            if phase in ("", _HELD) or self._last is None:
                self._spare += [self._last[0]] if self._last is not None else []
                self._last = (event, issued_ns)
                self._parts = self._parts if phase == _HELD else []
                continue
            before, before_ns = self._last
            duration_ns = int(before.elapsed_time(event) * 1e6)
            self._tell(phase, (before_ns, duration_ns, is_dry), step)
            self._spare.append(before)
            self._last = (event, before_ns + duration_ns)

    def _tell(self, phase: str, part: tuple[int, int, int], step: int) -> None:
        if phase in (GOES_ON, _MADE_BATCH):
            self._parts.append(part if phase == GOES_ON else (*part[:2], _IDLE))
            return
        cut: list[tuple[int, int, int]] = []
        if phase != "copy":
            cut, self._parts = self._parts, []
        is_queued = phase.endswith(QUEUED)
        if is_queued and step in self._spoiled:
            return
        for start_ns, duration_ns, ended in [*cut, part]:
            code = self._recorder.code(Kind.DEVICE, phase + DRY if ended == _IDLE else phase)
            value = 1 if ended == _IDLE else ended
            self._recorder.emit(
                (code, start_ns, duration_ns, LATE if is_queued and step in self._late else value, step)
            )

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
        is_dry = int(stream.query()) if phase in (*PHASES, GOES_ON) else NOT_GIVEN
        begun = self._begun
        if phase in PHASES and self._held_phase is None:
            place, since_ns = begun.place_at(at_ns)
            self._held_back.saw(phase, place=place, launched_ns=at_ns - since_ns, is_dry=is_dry == 1)
        self._append(self._told(phase, is_dry, at_ns), at_ns, is_dry)
        if phase == GOES_ON:
            begun.copy_begins(at_ns)
            return
        place = begun.copied(now_ns()) if phase == "copy" else begun.ended(phase, now_ns())
        self._was_held = self._was_held and phase == "copy"
        self._hold_from(place)

    def _hold_from(self, place: Place) -> None:
        """Where the phase begins that this step is for; without gradients it is a batch of an evaluation."""
        held = self._held_phase if self._is_grad_enabled() else None
        if held is None or not self._held_back.begins_at(held, place):
            return
        # between steps the host may wait for the device, as `loss.item()` does, and would wait for what holds it
        if held == "forward" and place[-1] == 0 and self._next_call.await_with(self._hold_in_call):
            self._num_allocated = self._num_allocations()
        else:
            self._hold()

    def _hold_in_call(self) -> bool:
        is_meant: bool = threading.get_ident() == self._recorder.main_thread and self._is_grad_enabled()
        if is_meant:
            self._recorder.guard(self._hold_after_batch)
        return is_meant

    def _hold_after_batch(self) -> None:
        if self._num_allocated is None or self._num_allocations() != self._num_allocated:
            # the device may have made the batch since, and that is work
            self._append(GOES_ON, now_ns())
        self._hold()

    def _num_allocations(self) -> int | None:
        """So far; whatever a device computes it allocates memory for. None where nobody counts them."""
        found: int | None = self._cuda.memory_stats().get("allocation.all.allocated")
        return found

    def _hold(self) -> None:
        """Until the host has launched what comes next."""
        cuda = self._cuda
        if self._held_phase is None or cuda.is_current_stream_capturing() or cuda.current_stream() != self._stream:
            return
        self._held_back.hold_for(self._held_phase)
        self._append(_HELD, now_ns())
        self._was_held, self._num_copies_before = True, self._begun.num_copies

    def _append(self, phase: str, at_ns: int, is_dry: int = NOT_GIVEN) -> None:
        event = self._spare.pop() if self._spare else self._cuda.Event(enable_timing=True)
        event.record()
        self._pending.append((phase, event, at_ns, self._recorder.num_steps, is_dry))

    def _told(self, phase: str, is_dry: int, at_ns: int) -> str:
        """Of a step that the device is held back in: that phase alone, from where it was."""
        if self._held_phase is None:
            has_nothing = phase == GOES_ON and is_dry == 1 and self._begun.num_copies == 0
            return _MADE_BATCH if has_nothing else phase
        # a copy itself may wait until the device has done what was queued before it
        is_late = self._begun.num_copies == self._num_copies_before and self._held_back.is_over(at_ns)
        if phase == GOES_ON and self._was_held:
            self._spoiled = self._with_this(self._spoiled, is_dry == 1)
            self._late = self._with_this(self._late, is_late)
            return phase
        if phase == self._held_phase:
            self._spoiled = self._with_this(self._spoiled, not self._was_held)
            self._late = self._with_this(self._late, is_late)
            return f"{phase}{QUEUED}"
        return _HELD if phase in ("copy", GOES_ON) else ""

    def _with_this(self, steps: set[int], is_so: bool) -> set[int]:
        return {*sorted(steps)[-_MAX_PENDING:], self._recorder.num_steps} if is_so else steps

    def _plan(self, step: int, cost_ns: int) -> None:
        """The next step to follow: so far ahead that following costs a small share of the time between."""
        if step + 1 < _NUM_FIRST_STEPS:
            self._next_step = step + 1
            return
        at_ns = now_ns()
        step_ns = max(1, (at_ns - self._last_followed_ns) // max(1, step + 1 - self._last_followed))
        self._last_followed_ns, self._last_followed = at_ns, step + 1
        affordable = step + max(1, round(cost_ns / (_LARGEST_COST_SHARE * step_ns)))
        self._next_step = min(affordable, self._held_back.next_wanted(step + 1))


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
