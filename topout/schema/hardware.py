"""What devices can do at most: the table `hardware.toml`, and an assumption for processors that are not in it.

Not a measurement: a device that throttles, or shares its power with others, never reaches these figures. Each figure
says where it comes from and how far it may be trusted.
"""

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

ASSUMED_CPU_HZ = 3.0e9
"""What a server's core runs at with wide vectors."""
ASSUMED_CPU_FLOPS_PER_CYCLE = 64
"""Two fused multiply-adds of sixteen single-precision lanes (AVX-512); half of it is all that older cores can do.

A peak must not lie below what is reached: the half of this, at 2.5 GHz, was exceeded by a plain matrix product.
"""

_PART_OF_A_GPU = re.compile(r"\bMIG \d+[gc]\.")
"""`NVIDIA H100 80GB HBM3 MIG 1g.10gb` has a share of the GPU's units and of its memory."""
PRECISIONS = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8")
CONFIDENCES = ("read", "computed", "recalled", "disputed")


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where figures come from."""

    title: str
    address: str | None = None


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One number of the table and what stands behind it."""

    value: float
    unit: str
    """`FLOP/s`, `OP/s`, `B` or `B/s`."""
    source: str
    """Key of `sources()`."""
    confidence: str
    """One of `CONFIDENCES`."""
    density: str | None = None
    """Of a rate: `dense` or `sparse`."""
    note: str | None = None


@dataclass(frozen=True, kw_only=True)
class Device:
    """One row of the table; what is not in `figures` the device does not have, or nobody knew."""

    name: str
    full_name: str
    maker: str
    kind: str
    """`gpu`, `tpu` or `cpu`."""
    year: int
    words: tuple[str, ...]
    """Each is looked for in what torch or the kernel calls a device."""
    figures: dict[str, Figure]
    per: str | None = None
    """What the figures belong to, where it is not the whole device."""
    num_cores: int | None = None
    note: str | None = None

    def rate(self, precision: str) -> Figure | None:
        """The fastest dense arithmetic of one of `PRECISIONS`, on whichever unit the device has for it."""
        found = [self.figures[key] for key in (f"{precision}_matrix", precision) if key in self.figures]
        return max(found, key=lambda figure: figure.value, default=None)

    def ridge_flops_per_byte(self, precision: str) -> float | None:
        """Operations a byte from which on arithmetic, and no longer memory, holds back."""
        rate, bandwidth = self.rate(precision), self.figures.get("memory_bandwidth")
        return rate.value / bandwidth.value if rate and bandwidth else None


@dataclass(frozen=True, kw_only=True)
class DevicePeak:
    """One accelerator's peaks as an analysis needs them; None = it has no such arithmetic."""

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
        # where halves are slower than single precision, libraries compute in single precision
        return max(narrow.get(dtype or "") or single or self.fp32_flops_per_s, self.fp32_flops_per_s)


@cache
def devices() -> tuple[Device, ...]:
    """The whole table, in the order in which names are tried."""
    return tuple(_device(row) for row in _table()["device"])


@cache
def sources() -> dict[str, Source]:
    return {key: Source(**row) for key, row in _table()["source"].items()}


@cache
def device_peaks() -> tuple[DevicePeak, ...]:
    """The accelerators that are known well enough to compare a training with."""
    return tuple(peak for device in devices() if device.kind != "cpu" and (peak := _peak(device)) is not None)


def find_device(device_name: str) -> DevicePeak | None:
    """`NVIDIA H100 80GB HBM3` is the H100 of the table."""
    row = find_row(device_name, kinds=("gpu", "tpu"))
    return next((peak for peak in device_peaks() if row is not None and peak.name == row.name), None)


def find_row(name: str, kinds: tuple[str, ...] = ("gpu", "tpu", "cpu")) -> Device | None:
    """The row of what torch or the kernel calls `name`; a GH200 is no H200, an A1000 no A100, a MIG device no GPU."""
    if _PART_OF_A_GPU.search(name):
        return None
    for device in devices():
        if device.kind in kinds and any(_is_word_in(word, name) for word in device.words):
            return device
    return None


def assumed_cpu_flops_per_s(num_cores: int) -> float:
    return num_cores * ASSUMED_CPU_HZ * ASSUMED_CPU_FLOPS_PER_CYCLE


def _is_word_in(word: str, name: str) -> bool:
    return re.search(rf"(?<![a-z0-9]){re.escape(word.lower())}(?![a-z0-9])", name.lower()) is not None


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads((files("topout.schema") / "hardware.toml").read_text(encoding="utf-8"))


def _device(row: dict[str, Any]) -> Device:
    figures = {key: Figure(**figure) for key, figure in row["figures"].items()}
    return Device(**{**row, "words": tuple(row["words"]), "figures": figures})


def _peak(device: Device) -> DevicePeak | None:
    def value(key: str) -> float | None:
        figure = device.figures.get(key)
        return figure.value if figure else None

    fp32, bandwidth, memory = device.rate("fp32"), value("memory_bandwidth"), value("memory")
    if fp32 is None or bandwidth is None or memory is None:
        return None
    rates = {precision: device.rate(precision) for precision in ("bf16", "fp16", "tf32")}
    return DevicePeak(
        name=device.name,
        fp32_flops_per_s=fp32.value,
        memory_bytes_per_s=bandwidth,
        memory_bytes=int(memory),
        **{f"{precision}_flops_per_s": rate.value if rate else None for precision, rate in rates.items()},
    )
