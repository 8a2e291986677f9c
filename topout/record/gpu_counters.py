"""Use, memory, power and clock of a rank's GPU, through NVML where nvidia-ml-py is installed.

Not through torch: a CUDA context in the launcher would take memory on the very device it watches.
"""

import contextlib
import os
from collections.abc import Callable
from typing import Any


class GpuCounters:
    """NVML, or nothing: without the library or the driver every reading is empty."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: dict[int, Any] = {}
        with contextlib.suppress(Exception):
            import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml

    def read(self, gpu: int | None) -> dict[str, int]:
        """Counters of the GPU that CUDA shows under this number."""
        if self._nvml is None or gpu is None:
            return {}
        if gpu not in self._handles:
            self._handles[gpu] = self._find(gpu)
        handle = self._handles[gpu]
        if handle is None:
            return {}
        nvml = self._nvml
        questions: dict[str, Callable[[], int]] = {
            "gpu_busy_percent": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
            "gpu_memory_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used,
            "gpu_power_watts": lambda: nvml.nvmlDeviceGetPowerUsage(handle) // 1000,
            "gpu_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        }
        found = {}
        for name, ask in questions.items():
            # virtual and partitioned GPUs answer some questions only
            with contextlib.suppress(Exception):
                found[name] = int(ask())
        return found

    def close(self) -> None:
        if self._nvml is not None:
            with contextlib.suppress(Exception):
                self._nvml.nvmlShutdown()

    def _find(self, gpu: int) -> Any:
        shown = [part.strip() for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if part.strip()]
        try:
            entry = shown[gpu] if shown else str(gpu)
            if entry.isdigit():
                return self._nvml.nvmlDeviceGetHandleByIndex(int(entry))
            return self._nvml.nvmlDeviceGetHandleByUUID(entry.encode())
        except Exception:
            return None
