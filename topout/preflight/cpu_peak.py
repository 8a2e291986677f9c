"""What a processor could do at most: a row of the hardware table, or cores x clock x operations a cycle.

An assumption, and its words say so: turbo clocks exceed what the kernel admits, wide vectors lower them.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass

from topout.schema.counted import counted
from topout.schema.hardware import ASSUMED_CPU_HZ, Device, find_row

AMX_BF16_FLOPS_PER_CYCLE = 1024
_ONE_FMA = re.compile(
    r"xeon\S*\s+(silver|bronze)\s+\d[12]\d\d|gold\s+5[12]\d\d|1[01]th gen .*core|i[3579]-1[01]\d\d", re.I
)
_TWO_FMA_AFTER_ALL = re.compile(r"gold\s+5[12]22\b", re.I)
_HALVES = re.compile(r"epyc ([489]\d\d4|9[brv]\d4|9v33x|9v64h)|mi300[ac]\b|ryzen", re.I)
"""Zen 4: EPYC 9004, 8004 and 4004, those that clouds have made for them, and the MI300's own cores."""
_TWO_OF_ARM = re.compile(r"neoverse[ -]n\d|kunpeng[ -]920|ampere-1", re.I)
"""Cores with two vector units, as `host.topology` and lscpu name them; those for speed have four, or two wider ones."""


@dataclass(frozen=True, kw_only=True)
class CpuPeak:
    """Of the cores that were granted."""

    fp32_flops_per_s: float
    bf16_flops_per_s: float | None
    """Of AMX; None without it."""
    memory_bytes_per_s: float | None
    """None: nobody knows how many channels are filled."""
    how: dict[str, str]
    """By dtype, in words for the reader."""


def cpu_peak(model: str, num_cores: int, num_sockets: int, clock_hz: float | None, flags: Collection[str]) -> CpuPeak:
    row = find_row(model, kinds=("cpu",))
    if row is not None and row.num_cores:
        return _from_table(row, num_cores / row.num_cores, num_sockets)
    hertz = clock_hz or ASSUMED_CPU_HZ
    per_cycle, words = flops_per_cycle(model, flags)
    cores = counted(num_cores, "core")
    clock = f"{hertz / 1e9:.1f} GHz{'' if clock_hz else ' assumed'}"
    return CpuPeak(
        fp32_flops_per_s=num_cores * hertz * per_cycle,
        bf16_flops_per_s=num_cores * hertz * AMX_BF16_FLOPS_PER_CYCLE if "amx_bf16" in flags else None,
        memory_bytes_per_s=None,
        how={
            "float32": f"assumed: {cores} x {clock} x {per_cycle} a cycle, {words}",
            "bfloat16": f"assumed: {cores} x {clock} x {AMX_BF16_FLOPS_PER_CYCLE:,} a cycle, AMX",
        },
    )


def has_one_fma(model: str) -> bool:
    """Cores with a single 512-bit multiply-add unit: AVX-512 then computes no more than AVX2, at a lower clock."""
    return _ONE_FMA.search(model) is not None and _TWO_FMA_AFTER_ALL.search(model) is None


def flops_per_cycle(model: str, flags: Collection[str]) -> tuple[int, str]:
    """Single precision, of one core."""
    if "avx512f" in flags and _HALVES.search(model):
        return 32, "AVX-512 in 256-bit halves"
    if "avx512f" in flags:
        return (32, "AVX-512, one FMA unit") if has_one_fma(model) else (64, "AVX-512, two FMA units")
    if "avx2" in flags and "fma" in flags:
        return 32, "AVX2, two FMA units"
    if "asimd" in flags and _TWO_OF_ARM.search(model):
        return 16, "two 128-bit FMA units"
    if "sve" in flags or "asimd" in flags:
        return 32, "four 128-bit FMA units"
    return 16, "vectors of unknown width"


def _from_table(row: Device, share: float, num_sockets: int) -> CpuPeak:
    fp32, bf16, bandwidth = row.rate("fp32"), row.rate("bf16"), row.figures.get("memory_bandwidth")
    assert fp32 is not None
    return CpuPeak(
        fp32_flops_per_s=fp32.value * share,
        bf16_flops_per_s=bf16.value * share if bf16 else None,
        memory_bytes_per_s=bandwidth.value * num_sockets if bandwidth else None,
        how=dict.fromkeys(("float32", "bfloat16"), f"{row.name} of the hardware table, by the share of cores"),
    )
