"""The device clock: where the GPU's time goes, from events recorded between phases and read when they are done.

The host runs ahead of the GPU, so its own stamps say little. An event on the stream at the end of each phase makes
the intervals between events the device's phases: a device that starves shows it as a long `input`, one that lags
behind a fast host shows none. Events are polled a step or more later with `query`; nothing is ever synchronised, and
nothing recorded while a graph is being captured. Recording and reading events takes the host some hundred
microseconds a step, so only as many steps are followed as fit into a small share of its time.
"""

import functools
import threading
from collections import deque
from types import ModuleType
from typing import Any

from topout.record.clock import now_ns
from topout.record.recorder import Recorder
from topout.record.torch_taps.sizes import num_bytes_of
from topout.schema.event import NOT_GIVEN, Kind

_MAX_PENDING = 512
"""A device that lags further behind than this is not followed."""
_LARGEST_COST_SHARE = 0.001
"""Of the host's time as far as it is seen here; what events cost later launches comes on top, about thrice that."""
_NEVER = 1 << 62
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
        self._next_step = 0
        self._cost_ns = 0
        self._last_followed_ns = now_ns()
        self._last_followed = 0

    def mark(self, phase: str) -> None:
        """`phase` ends here. In place only during steps that are followed."""
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
        recorder.mark = self.mark if step + 1 >= self._next_step else None
        if recorder.mark is not None and step + 1 > _NUM_FIRST_STEPS:
            self._record("", now_ns())  # where the step before ended, in case it was not followed

    def _begin_anew(self) -> None:
        """The steps before were told by backward and were none; what was marked in them has numbers that come again."""
        self._pending.clear()
        self._last = None
        self._next_step = self._last_followed = 0

    def poll(self) -> None:
        """Reads events up to the first that is not done."""
        pending = self._pending
        if not pending or self._cuda.is_current_stream_capturing():  # a query would break the capture
            return
        while pending and pending[0][1].query():
            phase, event, issued_ns, step = pending.popleft()
            if not phase or self._last is None:
                self._last = (event, issued_ns)
                continue
            before, before_ns = self._last
            duration_ns = int(before.elapsed_time(event) * 1e6)
            code = self._recorder.code(Kind.DEVICE, phase)
            self._recorder.emit((code, before_ns, duration_ns, NOT_GIVEN, step))
            self._spare.append(before)
            self._last = (event, before_ns + duration_ns)

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
        if phase != "copy":
            self._stream = stream
        elif stream != self._stream:
            # a loader that copies ahead on a stream of its own: its events are in no order with the step's
            return
        event = self._spare.pop() if self._spare else cuda.Event(enable_timing=True)
        event.record()
        self._pending.append((phase, event, at_ns, self._recorder.num_steps))

    def _plan(self, step: int, cost_ns: int) -> None:
        """The next step to follow: so far ahead that following costs a small share of the time between."""
        if step + 1 < _NUM_FIRST_STEPS:
            self._next_step = step + 1
            return
        at_ns = now_ns()
        step_ns = max(1, (at_ns - self._last_followed_ns) // max(1, step + 1 - self._last_followed))
        self._last_followed_ns, self._last_followed = at_ns, step + 1
        self._next_step = step + max(1, round(cost_ns / (_LARGEST_COST_SHARE * step_ns)))


def _tap_copies(torch: ModuleType, recorder: Recorder) -> None:
    """`Tensor.to` and `Tensor.cuda` from the host: how many bytes went, and when the device had them.

    The host's own time says little: a copy from pageable memory waits until the device has caught up.
    """
    copied = recorder.code(Kind.COPY)

    def tapped(original: Any) -> Any:
        @functools.wraps(original)
        def copy(self: Any, *args: Any, **kwargs: Any) -> Any:
            if recorder.mark is None or self.is_cuda or torch.compiler.is_compiling():
                return original(self, *args, **kwargs)
            start_ns = now_ns()
            result = original(self, *args, **kwargs)
            if result.is_cuda and recorder.has_begun:
                recorder.span(copied, start_ns, num_bytes_of(result))
                recorder.mark("copy")
            return result

        return copy

    torch.Tensor.to = tapped(torch.Tensor.to)
    torch.Tensor.cuda = tapped(torch.Tensor.cuda)
