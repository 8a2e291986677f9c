"""Arithmetic and memory against the hardware table: the roofline, and where each kernel stands under it.

A processor's peak is often assumed, and the line then says how. Not a judgement of a model: its kernels are other ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from topout.preflight.amounts import flops, percent, rate
from topout.preflight.check import Check, Reading, Verdict, over_hosts, unmeasured
from topout.preflight.cpu_peak import cpu_peak
from topout.preflight.facts import BACKWARD, BY_ONEDNN, SMALL_PRODUCT, WITHOUT_ONEDNN, Facts, Kernel
from topout.schema.hardware import find_row

GROUP = "Kernels and memory"
_ENOUGH_OF_CPU_PEAK = 0.4
_ENOUGH_OF_GPU_PEAK = 0.6
_ENOUGH_OF_AMX_PEAK = 0.1
"""A product of a few thousand rows spends its time moving tiles, and still beats vectors by far."""
_FAR_TOO_SLOW = 0.1
_ENOUGH_OF_BANDWIDTH = 0.5
_ENOUGH_OF_ROOF = 0.1
_WORTH_TURNING_OFF = 1.2
_WITHOUT_ONEDNN = {
    BACKWARD: "Compute(onednn_backward='auto') of topout, or loss.backward() under "
    "torch.backends.mkldnn.flags(enabled=False); forward stays as it is",
    SMALL_PRODUCT: "export TORCH_MKLDNN_MATMUL_MIN_SIZE=4000000, where layers are small",
}
"""How torch's own kernels are had for each."""
_NEED_NOT_REACH_IT = {
    "matrix product": "large ones reach the roof, small ones are bound by their launch",
    "recurrent layer": "below the roof: each step waits for the one before",
}
_SLOW = "other jobs, a low clock (power, heat, governor) or too few threads: see the lines on load, governor and OpenMP"
_PRECISIONS = {"float32": "fp32", "tf32": "tf32", "bfloat16": "bf16", "float16": "fp16"}


@dataclass(frozen=True, kw_only=True)
class Roof:
    """What a host's device could do, and what it did."""

    peaks_flops_per_s: dict[str, float]
    """By dtype; missing where nobody knows."""
    bandwidth_bytes_per_s: float | None
    origins: dict[str, str]
    """Of the peaks, by dtype, in words; `""` when the device is not known at all."""
    measured_flops_per_s: dict[str, float]
    """By dtype: the fastest matrix product."""
    fastest_flops_per_s: dict[str, float]
    """By dtype: the fastest of all kernels, which need not be a product."""
    measured_bytes_per_s: float | None

    def attainable_flops_per_s(self, kernel: Kernel) -> float | None:
        """Roofline through what was measured: the fastest kernel of that dtype, and the triad."""
        top = self.fastest_flops_per_s.get(kernel.dtype)
        if top is None or self.measured_bytes_per_s is None or kernel.moved_bytes == 0:
            return None
        return min(top, kernel.flops / kernel.moved_bytes * self.measured_bytes_per_s)


def judge_kernels(hosts: Sequence[Facts], *, sweeps: bool) -> list[Check]:
    kernels = [kernel for facts in hosts for kernel in facts.kernels if kernel.instructions is None]
    if not kernels:
        return [unmeasured(hosts, GROUP, "kernels", "measured", "kernels")]
    checks: list[Check | None] = []
    names = list(dict.fromkeys((kernel.name, kernel.dtype) for kernel in kernels))
    products = [dtype for name, dtype in names if name == "matrix product"]
    checks += [_product(hosts, dtype) for dtype in products]
    checks += [_bandwidth(hosts, name) for name in ("triad", "copy")]
    checks += [_ridge(hosts, dtype) for dtype in products]
    shapes = dict.fromkeys(
        (k.name, k.shape, k.dtype) for k in kernels if k.flops > 0 and k.name not in ("triad", BACKWARD, SMALL_PRODUCT)
    )
    for name, shape, dtype in shapes:
        if sweeps or name in ("convolution", "recurrent layer"):
            checks.append(_under_the_roof(hosts, name, shape, dtype))
    checks += [_beside_onednn(hosts, name, fix) for name, fix in _WITHOUT_ONEDNN.items()]
    checks.append(_instruction_sets(hosts))
    return [check for check in checks if check is not None]


def roof_of(facts: Facts) -> Roof | None:
    own = [kernel for kernel in facts.kernels if kernel.instructions is None]
    if not own:
        return None
    measured = _fastest([kernel for kernel in own if kernel.name == "matrix product"])
    # without torch there is a copy alone
    moved = [kernel.bytes_per_s for kernel in own if kernel.name in ("triad", "copy")]
    bandwidth, peaks, origins = _expected(facts, own[0].device)
    return Roof(
        peaks_flops_per_s=peaks,
        bandwidth_bytes_per_s=bandwidth,
        origins=origins,
        measured_flops_per_s=measured,
        fastest_flops_per_s=_fastest(own),
        measured_bytes_per_s=max(moved, default=None),
    )


def _fastest(kernels: Sequence[Kernel]) -> dict[str, float]:
    found: dict[str, float] = {}
    for kernel in kernels:
        if kernel.flops > 0:
            found[kernel.dtype] = max(found.get(kernel.dtype, 0.0), kernel.flops_per_s)
    return found


def _expected(facts: Facts, device: str) -> tuple[float | None, dict[str, float], dict[str, str]]:
    if device != "cpu":
        row = find_row(device, kinds=("gpu",))
        if row is None:
            return None, {}, {}
        rates = {dtype: row.rate(precision) for dtype, precision in _PRECISIONS.items()}
        vector = row.figures.get("fp32")
        peaks = {dtype: found.value for dtype, found in rates.items() if found}
        if vector:
            # a single-precision product does not use the matrix units
            peaks["float32"] = vector.value
        bandwidth = row.figures.get("memory_bandwidth")
        return bandwidth.value if bandwidth else None, peaks, dict.fromkeys(peaks, f"{row.name} of the hardware table")
    cores = int(facts.hardware.get("cores", "1").split()[0])
    sockets = int(facts.hardware.get("sockets", "1"))
    peak = cpu_peak(facts.hardware.get("processor", ""), cores, sockets, facts.cpu_clock_hz, facts.cpu_flags)
    peaks = {"float32": peak.fp32_flops_per_s}
    if peak.bf16_flops_per_s is not None:
        peaks["bfloat16"] = peak.bf16_flops_per_s
    return peak.memory_bytes_per_s, peaks, peak.how


def _product(hosts: Sequence[Facts], dtype: str) -> Check | None:
    expectations: list[str] = []

    def read(facts: Facts) -> Reading | None:
        roof = roof_of(facts)
        if roof is None or dtype not in roof.measured_flops_per_s:
            return None
        reached, peak = roof.measured_flops_per_s[dtype], roof.peaks_flops_per_s.get(dtype)
        if peak is None:
            expectations.append("no peak is known for it" if roof.peaks_flops_per_s else "not in the hardware table")
            return Reading(text=flops(reached), number=reached)
        is_cpu = _is_cpu(facts)
        enough = _enough_of_peak(dtype, is_cpu=is_cpu)
        expectations.append(f"at least {percent(enough)} of {flops(peak)} ({roof.origins[dtype]})")
        verdict = Verdict.FINE if reached >= enough * peak else Verdict.WARNING
        if reached < _FAR_TOO_SLOW * peak and not is_cpu:
            verdict = Verdict.UNFIT
        text = f"{flops(reached)}, {percent(reached / peak)}"
        return Reading(text=text, verdict=verdict, number=reached, fix=_SLOW)

    check = over_hosts(hosts, GROUP, f"matrix product {dtype}", "", read, unit="FLOP/s", is_rate=True)
    return _expecting(check, expectations)


def _is_cpu(facts: Facts) -> bool:
    return facts.kernels[0].device == "cpu"


def _enough_of_peak(dtype: str, *, is_cpu: bool) -> float:
    if not is_cpu:
        return _ENOUGH_OF_GPU_PEAK
    return _ENOUGH_OF_AMX_PEAK if dtype == "bfloat16" else _ENOUGH_OF_CPU_PEAK


def _bandwidth(hosts: Sequence[Facts], name: str) -> Check | None:
    expectations: list[str] = []

    def read(facts: Facts) -> Reading | None:
        roof = roof_of(facts)
        kernel = next((k for k in facts.kernels if k.name == name), None)
        if roof is None or kernel is None:
            return None
        text = rate(kernel.bytes_per_s)
        if roof.bandwidth_bytes_per_s is None:
            expectations.append("no table row; compare with the processor's memory channels")
            return Reading(text=text, number=kernel.bytes_per_s)
        expectations.append(
            f"at least {percent(_ENOUGH_OF_BANDWIDTH)} of the table's {rate(roof.bandwidth_bytes_per_s)}"
        )
        is_enough = kernel.bytes_per_s >= _ENOUGH_OF_BANDWIDTH * roof.bandwidth_bytes_per_s
        fix = (
            "few cores cannot draw all of a socket's bandwidth; else memory channels are empty, or other jobs use them"
        )
        verdict = Verdict.FINE if is_enough else Verdict.WARNING
        return Reading(text=text, verdict=verdict, number=kernel.bytes_per_s, fix=fix)

    shapes = [kernel.shape for facts in hosts for kernel in facts.kernels if kernel.name == name]
    title = f"memory {name}, {shapes[0]}" if shapes else f"memory {name}"
    check = over_hosts(hosts, GROUP, title, "", read, unit="B/s", is_rate=True)
    return _expecting(check, expectations)


def _ridge(hosts: Sequence[Facts], dtype: str) -> Check | None:
    expectations: list[str] = []

    def read(facts: Facts) -> Reading | None:
        roof = roof_of(facts)
        if roof is None or dtype not in roof.measured_flops_per_s or not roof.measured_bytes_per_s:
            return None
        ridge = roof.measured_flops_per_s[dtype] / roof.measured_bytes_per_s
        peak = roof.peaks_flops_per_s.get(dtype)
        if peak and roof.bandwidth_bytes_per_s:
            expectations.append(f"{peak / roof.bandwidth_bytes_per_s:.0f} FLOP/byte by the table")
        else:
            expectations.append("below it memory holds a kernel back, above it arithmetic")
        return Reading(text=f"{ridge:.0f} FLOP/byte", number=ridge)

    check = over_hosts(hosts, GROUP, f"ridge point {dtype}", "", read, unit="FLOP/byte")
    return _expecting(check, expectations)


def _under_the_roof(hosts: Sequence[Facts], name: str, shape: str, dtype: str) -> Check | None:
    def read(facts: Facts) -> Reading | None:
        roof = roof_of(facts)
        wanted = (name, shape, dtype, None)
        kernel = next((k for k in facts.kernels if (k.name, k.shape, k.dtype, k.instructions) == wanted), None)
        if roof is None or kernel is None:
            return None
        attainable = roof.attainable_flops_per_s(kernel)
        if attainable is None:
            return Reading(text=flops(kernel.flops_per_s), number=kernel.flops_per_s)
        share = kernel.flops_per_s / attainable
        intensity = kernel.flops / kernel.moved_bytes
        text = f"{flops(kernel.flops_per_s)}, {percent(share)} of the roof at {intensity:.0f} FLOP/byte"
        fix = "a library without a fast path for it: other versions of torch, oneDNN or cuDNN, or channels_last"
        is_slow = share < _ENOUGH_OF_ROOF and name not in _NEED_NOT_REACH_IT
        verdict = Verdict.WARNING if is_slow else Verdict.FINE
        return Reading(text=text, verdict=verdict, number=kernel.flops_per_s, fix=fix)

    expectation = _NEED_NOT_REACH_IT.get(name, f"at least {percent(_ENOUGH_OF_ROOF)} of the roof")
    return over_hosts(hosts, GROUP, f"{name} {shape} {dtype}", expectation, read, unit="FLOP/s")


def _beside_onednn(hosts: Sequence[Facts], name: str, how: str) -> Check | None:
    def read(facts: Facts) -> Reading | None:
        rates = {kernel.library: kernel.flops_per_s for kernel in facts.kernels if kernel.name == name}
        if len(rates) < 2:
            return None
        gain = rates[WITHOUT_ONEDNN] / rates[BY_ONEDNN]
        text = f"{flops(rates[BY_ONEDNN])} by oneDNN, {flops(rates[WITHOUT_ONEDNN])} without"
        verdict = Verdict.FINE if gain < _WORTH_TURNING_OFF else Verdict.WARNING
        fix = f"{gain:.1f} times as fast without oneDNN: {how}"
        return Reading(text=text, verdict=verdict, number=rates[BY_ONEDNN], fix=fix)

    return over_hosts(hosts, GROUP, f"{name} float32", "oneDNN, which torch uses, is the faster one", read)


def _instruction_sets(hosts: Sequence[Facts]) -> Check | None:
    def read(facts: Facts) -> Reading | None:
        forced = [kernel for kernel in facts.kernels if kernel.instructions is not None]
        wide = {kernel.name: kernel.flops_per_s for kernel in forced if kernel.instructions == "avx512"}
        narrow = {kernel.name: kernel.flops_per_s for kernel in forced if kernel.instructions == "avx2"}
        both = [name for name in wide if name in narrow]
        if not both:
            return None
        text = "; ".join(f"{name}: AVX-512 {wide[name] / narrow[name]:.2f} times AVX2" for name in both)
        wins = all(narrow[name] > wide[name] for name in both)
        fix = "AVX2 wins here: export ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2"
        return Reading(text=text, verdict=Verdict.WARNING if wins else Verdict.FINE, fix=fix)

    return over_hosts(hosts, GROUP, "AVX-512 against AVX2", "the wider one is faster", read)


def _expecting(check: Check | None, expectations: Sequence[str]) -> Check | None:
    if check is None:
        return None
    return replace(check, expectation=expectations[0] if expectations else "measured")
