"""What torch knows about the machine, once torch is there; and the device clock, once a GPU is in use."""

import os
import sys
from types import ModuleType
from typing import Any

from topout.record.clock import now_ns
from topout.record.recorder import Recorder
from topout.record.torch_taps import device, profiler

_AMPERE = 8
_PRODUCT_SIZES = (128, 256, 512, 1024)
_NUM_PRODUCTS = 8
_LONGEST_NS = 20_000_000
"""A product that takes longer is not repeated or made larger: a CPU without bfloat16 needs seconds for the largest."""


def install(module: ModuleType, recorder: Recorder) -> None:
    recorder.fact(torch_version=str(module.__version__))
    once = Setup(recorder)
    recorder.at_pulse.append(once.record)
    recorder.at_finish.append(once.record_peak)
    if recorder.settings.profile is not None:
        profiler.install(module, recorder)
    if module.backends.cuda.is_built():
        device.install(module, recorder)


class Setup:
    """Looks once, at the first pulse and not at import: by then the script has set what it sets."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._is_recorded = False

    def record(self) -> None:
        if self._is_recorded:
            return
        self._is_recorded = True
        torch = sys.modules["torch"]
        self._recorder.fact(num_threads=torch.get_num_threads(), affinity=sorted(os.sched_getaffinity(0)))
        if not torch.cuda.is_available() or not torch.cuda.is_initialized():
            return
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        self._recorder.fact(
            device_name=properties.name,
            device_total_bytes=properties.total_memory,
            supports_bf16=properties.major >= _AMPERE,
            supports_tf32=properties.major >= _AMPERE,
        )

    def record_peak(self) -> None:
        """What this rank's cores can do: nobody's table knows a virtual machine's clock, so a product is timed.

        At the end of a run that trained, on a CPU, in some tens of milliseconds.
        """
        torch = sys.modules["torch"]
        if self._recorder.num_steps == 0 or torch.cuda.is_initialized():
            return
        dtype = getattr(torch, str(self._recorder.known("flop_dtype") or "float32"))
        with torch.no_grad():
            self._recorder.fact(measured_peak_flops_per_s=_peak_flops_per_s(torch, dtype))


def _peak_flops_per_s(torch: ModuleType, dtype: Any) -> float:
    best = 0.0
    for size in _PRODUCT_SIZES:
        operand = torch.ones(size, size, dtype=dtype)
        for _ in range(_NUM_PRODUCTS):
            start_ns = now_ns()
            torch.mm(operand, operand)
            took_ns = max(1, now_ns() - start_ns)
            best = max(best, 2 * size**3 / (took_ns / 1e9))
            if took_ns > _LONGEST_NS:
                return best
    return best
