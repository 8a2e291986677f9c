"""The device clock: where the GPU's time goes, from events recorded between phases and read when they are done.

The host runs ahead of the GPU, so its own stamps say little. An event on the stream at the end of each phase makes
the intervals between events the device's phases: a device that starves shows it as a long `input`, one that lags
behind a fast host shows none. Events are polled a step or more later with `query`; nothing is ever synchronised, and
nothing recorded while a graph is being captured.
"""

import functools
from collections import deque
from types import ModuleType
from typing import Any

from topout.record.clock import now_ns
from topout.record.recorder import Recorder
from topout.schema.event import NOT_GIVEN, Kind

_MAX_PENDING = 512
"""A device that lags further behind than this is not followed."""


def install(torch: ModuleType, recorder: Recorder) -> None:
    clock = DeviceClock(torch, recorder)
    recorder.mark = clock.mark
    recorder.at_step_end.append(clock.poll)
    recorder.at_finish.append(functools.partial(clock.poll, NOT_GIVEN))
    recorder.at_pulse.append(clock.record_memory)
    _tap_copies(torch, recorder)


class DeviceClock:
    """Marks phase ends on the current stream and turns them into DEVICE rows."""

    def __init__(self, torch: ModuleType, recorder: Recorder) -> None:
        self._cuda = torch.cuda
        self._recorder = recorder
        self._pending: deque[tuple[str, Any, int, int]] = deque()
        self._spare: list[Any] = []
        self._last: tuple[Any, int] | None = None
        """The event before the oldest pending one, and its time on the recording's clock."""

    def mark(self, phase: str) -> None:
        """`phase` ends here."""
        cuda = self._cuda
        if not cuda.is_initialized() or cuda.is_current_stream_capturing() or len(self._pending) >= _MAX_PENDING:
            return
        event = self._spare.pop() if self._spare else cuda.Event(enable_timing=True)
        event.record()
        self._pending.append((phase, event, now_ns(), self._recorder.num_steps))

    def poll(self, _step: int) -> None:
        """Reads what is done; stops at the first event that is not."""
        pending = self._pending
        if not pending or self._cuda.is_current_stream_capturing():  # a query would break the capture
            return
        while pending and pending[0][1].query():
            phase, event, issued_ns, step = pending.popleft()
            if self._last is None:
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


def _tap_copies(torch: ModuleType, recorder: Recorder) -> None:
    """`Tensor.to` and `Tensor.cuda` from the host: how many bytes went, and when the device had them.

    The host's own time says little: a copy from pageable memory waits until the device has caught up.
    """
    copied = recorder.code(Kind.COPY)

    def tapped(original: Any) -> Any:
        @functools.wraps(original)
        def copy(self: Any, *args: Any, **kwargs: Any) -> Any:
            if self.is_cuda or torch.compiler.is_compiling():
                return original(self, *args, **kwargs)
            start_ns = now_ns()
            result = original(self, *args, **kwargs)
            if result.is_cuda:
                recorder.span(copied, start_ns, result.nbytes)
                if recorder.has_begun and recorder.mark is not None:
                    recorder.mark("copy")
            return result

        return copy

    torch.Tensor.to = tapped(torch.Tensor.to)
    torch.Tensor.cuda = tapped(torch.Tensor.cuda)
