"""With whose kernels backward computes on a CPU: oneDNN's, as torch has it, or torch's own; whichever is faster.

oneDNN has no fast gradients of convolutions on ARM: those of a ResNet-18 take 260 ms where torch's own kernels take 58
(Neoverse N1, `benchmarks/step.py`), though forward it is the faster one. On x86 either may win, by shapes and batch. So
`auto` times both on the model itself, by turns of whole steps. The gradients are the same but for rounding: not for
runs that must repeat bit for bit, nor for bf16 and fp16, which are oneDNN's own ground.
"""

import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from topout.record.onednn import onednn
from topout.record.recorder import current

CHOICES = ("auto", True, False)
_NUM_WARM_UP = 2
"""Steps, one with each: what a kernel does at its first call is not counted."""
_NUM_TIMED = 8
_LEAST_GAIN = 1.05


class BackwardKernels:
    """The choice of one training; `around` encloses each backward."""

    def __init__(self, choice: bool | str, *, says: bool = True) -> None:
        """`choice`: whether oneDNN computes, or `auto`; `says`: one line on stderr if `auto` decides against it."""
        self.uses_onednn = choice in ("auto", True)
        self.is_settled = choice != "auto"
        self._says = says
        self._first_step: int | None = None
        self._step_s: dict[int, float] = {}

    @contextmanager
    def around(self, step: int) -> Iterator[None]:
        """`step`: of the optimizer; all batches that make one step are computed alike."""
        if not self.is_settled:
            self._settle(step)
        start_s = time.perf_counter()
        with onednn(self.uses_onednn if self.is_settled else self._in_trial(step)):
            yield
        if not self.is_settled:
            self._step_s[step] = self._step_s.get(step, 0.0) + time.perf_counter() - start_s

    def _in_trial(self, step: int) -> bool:
        return (step - (self._first_step or 0)) % 2 == 0

    def _settle(self, step: int) -> None:
        if self._first_step is None:
            self._first_step = step
        if step - self._first_step < _NUM_WARM_UP + _NUM_TIMED:
            return
        timed = [s for s in self._step_s if s - self._first_step >= _NUM_WARM_UP]
        with_s = [self._step_s[s] for s in timed if self._in_trial(s)]
        without_s = [self._step_s[s] for s in timed if not self._in_trial(s)]
        self.is_settled = True
        if with_s and without_s:
            gain = statistics.median(with_s) / statistics.median(without_s)
            self.uses_onednn = gain < _LEAST_GAIN
            recorder = current()
            if recorder is not None:
                # else what one step of the trial had would stand in the recording
                recorder.fact(backward_uses_onednn=self.uses_onednn)
            if not self.uses_onednn and self._says:
                sys.stderr.write(f"topout: backward computes without oneDNN, {gain:.1f} times as fast (measured)\n")
