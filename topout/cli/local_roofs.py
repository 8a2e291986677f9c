"""What a host was measured to reach, as `topout doctor` wrote it down: rates, bandwidth, and single kernels.

Written by this program or an older one, and perhaps edited: what is missing is left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from topout.schema.hardware import find_row

DTYPES = {"fp32": "float32", "tf32": "tf32", "bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True, kw_only=True)
class LocalKernel:
    name: str
    intensity: float
    """FLOP/byte"""
    flops_per_s: float


@dataclass(frozen=True, kw_only=True)
class LocalRoof:
    """One host: its fastest matrix product and its memory, as measured."""

    host: str
    device: str
    kind: str
    """`cpu`, `gpu` or `tpu`, as in the hardware table."""
    dtype: str
    flops_per_s: float
    bytes_per_s: float
    kernels: tuple[LocalKernel, ...]
    measured_at: str


def local_roofs(document: Mapping[str, Any] | None, precision: str) -> list[LocalRoof]:
    """Of every host of a diagnosis that has both rates; in single precision where the one asked for was not tried."""
    found = []
    for facts in _entries(document, "hosts"):
        host = str(facts.get("host", ""))
        roofs = (document or {}).get("roofs")
        roof = roofs.get(host) if isinstance(roofs, dict) else None
        if not isinstance(roof, dict):
            continue
        rates, bandwidth = roof.get("fastest_flops_per_s"), roof.get("measured_bytes_per_s")
        wanted = DTYPES.get(precision, "float32")
        dtype = wanted if isinstance(rates, dict) and wanted in rates else "float32"
        rate = rates.get(dtype) if isinstance(rates, dict) else None
        if rate is None or bandwidth is None or not _is_rate(rate) or not _is_rate(bandwidth):
            continue
        device = next((str(kernel.get("device")) for kernel in _entries(facts, "kernels")), "cpu")
        row = None if device == "cpu" else find_row(device)
        found.append(
            LocalRoof(
                host=host, device=device, kind="cpu" if device == "cpu" else row.kind if row else "gpu", dtype=dtype,
                flops_per_s=float(rate), bytes_per_s=float(bandwidth), kernels=_kernels(facts, dtype),
                measured_at=str((document or {}).get("started_at", ""))[:10],
            )
        )  # fmt: skip
    return found


def _kernels(facts: Mapping[str, Any], dtype: str) -> tuple[LocalKernel, ...]:
    found = []
    for kernel in _entries(facts, "kernels"):
        numbers = [kernel.get(key) for key in ("flops", "moved_bytes", "fastest_s")]
        flops, moved, seconds = (number if _is_rate(number) else 0 for number in numbers)
        is_known = bool(flops and moved and seconds)
        if is_known and kernel.get("dtype") == dtype and kernel.get("instructions") is None:
            name = f"{kernel.get('name', '')}, {kernel.get('shape', '')}"
            found.append(LocalKernel(name=name, intensity=flops / moved, flops_per_s=flops / seconds))
    return tuple(found)


def _is_rate(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _entries(document: Mapping[str, Any] | None, key: str) -> list[Mapping[str, Any]]:
    found = (document or {}).get(key)
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []
