"""What torch knows about the machine, once torch is there; and the device clock, once a GPU is in use."""

import os
import sys
from types import ModuleType

from topout.record.recorder import Recorder
from topout.record.torch_taps import device, profiler

_AMPERE = 8


def install(module: ModuleType, recorder: Recorder) -> None:
    recorder.fact(torch_version=str(module.__version__))
    recorder.at_pulse.append(lambda: _record_setup(recorder))
    if recorder.settings.profile is not None:
        profiler.install(module, recorder)
    if module.backends.cuda.is_built():
        device.install(module, recorder)


def _record_setup(recorder: Recorder) -> None:
    """At the first pulse, not at import: by then the script has set what it sets."""
    recorder.at_pulse = [callback for callback in recorder.at_pulse if callback.__name__ != "<lambda>"]
    torch = sys.modules["torch"]
    recorder.fact(num_threads=torch.get_num_threads(), affinity=sorted(os.sched_getaffinity(0)))
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    recorder.fact(
        device_name=properties.name,
        device_total_bytes=properties.total_memory,
        supports_bf16=properties.major >= _AMPERE,
        supports_tf32=properties.major >= _AMPERE,
        uses_tf32=torch.get_float32_matmul_precision() != "highest" or torch.backends.cuda.matmul.allow_tf32,
    )
