"""What devices can do at most: the table `hardware.toml`, and an assumption for processors.

Not a measurement: a device that throttles, or shares its power with others, never reaches these figures.
"""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

ASSUMED_CPU_HZ = 3.0e9
"""What a server's core runs at with wide vectors."""
ASSUMED_CPU_FLOPS_PER_CYCLE = 64
"""Two fused multiply-adds of sixteen single-precision lanes (AVX-512); half of it is all that older cores can do.

A peak must not lie below what is reached: the half of this, at 2.5 GHz, was exceeded by a plain matrix product.
"""


@dataclass(frozen=True, kw_only=True)
class DevicePeak:
    """One accelerator; None = it has no such arithmetic."""

    name: str
    fp32_flops_per_s: float
    memory_bytes_per_s: float
    memory_bytes: int
    bf16_flops_per_s: float | None = None
    fp16_flops_per_s: float | None = None
    tf32_flops_per_s: float | None = None

    def flops_per_s(self, dtype: str | None, *, uses_tf32: bool = False) -> float:
        """The peak for operands of torch's `dtype`; what is unknown counts as single precision."""
        single = self.tf32_flops_per_s if uses_tf32 else None
        narrow = {"bfloat16": self.bf16_flops_per_s, "float16": self.fp16_flops_per_s}
        return narrow.get(dtype or "") or single or self.fp32_flops_per_s


@cache
def device_peaks() -> tuple[DevicePeak, ...]:
    table = tomllib.loads((files("topout.schema") / "hardware.toml").read_text(encoding="utf-8"))
    return tuple(DevicePeak(**entry) for entry in table["device"])


def find_device(device_name: str) -> DevicePeak | None:
    """`NVIDIA H100 80GB HBM3` is the H100 of the table."""
    wanted = device_name.lower()
    return next((peak for peak in device_peaks() if peak.name.lower() in wanted), None)


def assumed_cpu_flops_per_s(num_cores: int) -> float:
    return num_cores * ASSUMED_CPU_HZ * ASSUMED_CPU_FLOPS_PER_CYCLE
