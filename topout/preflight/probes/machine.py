"""Versions and hardware of this host, for comparing it with the others; nothing is imported to learn a version.

Not a measurement; what the hardware reaches is in `kernels`.
"""

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from topout import __version__
from topout.host.hwloc import HwlocOpinion, ask_hwloc, compare
from topout.host.kernel_files import read_text
from topout.host.topology import cpu_model, read_host
from topout.schema.world import Host

PACKAGES = ("torch", "numpy", "torchvision", "lightning", "accelerate", "tensorflow", "jax")
FLAGS = (
    "avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8",
    "asimd", "sve", "sve2", "bf16", "i8mm",
)  # fmt: skip
"""Instruction sets that kernels care about, as Linux names them on x86 and ARM."""
_PROC = Path("/proc")
_SYS = Path("/sys")


def read_versions(proc_root: Path = _PROC, sys_root: Path = _SYS) -> dict[str, str]:
    found = {"topout": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    found["kernel"] = platform.release()
    name, number = platform.libc_ver()
    found[name or "libc"] = number
    drivers = {
        "NVIDIA driver": _nvidia_driver(proc_root / "driver/nvidia/version"),
        "AMD driver": read_text(sys_root / "module/amdgpu/version").strip(),
        "ROCm": read_text(Path("/opt/rocm/.info/version")).strip(),
    }
    found.update({key: value for key, value in drivers.items() if value})
    return {key: value for key, value in found.items() if value}


def read_hardware(host: Host) -> dict[str, str]:
    num_physical = len({(core.socket, core.physical) for core in host.cores})
    return {
        "processor": cpu_model(),
        "cores": f"{num_physical} ({len(host.cores)} logical)",
        "sockets": str(len({core.socket for core in host.cores})),
        "NUMA domains": str(len(host.numa_domains)),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "GPUs": _counted(host.gpus),
    }


def read_flags(proc_root: Path = _PROC) -> tuple[str, ...]:
    """Instruction sets that matter for kernels, as the kernel names them."""
    for line in read_text(proc_root / "cpuinfo").splitlines():
        name, _, values = line.partition(":")
        if name.strip() in ("flags", "Features"):
            there = set(values.split())
            return tuple(flag for flag in FLAGS if flag in there)
    return ()


def read_clock_hz(proc_root: Path = _PROC, sys_root: Path = _SYS) -> float | None:
    """The highest clock the kernel admits to; in a virtual machine often the base clock, which turbo exceeds."""
    highest = read_text(sys_root / "devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq").strip()
    if highest.isdigit():
        return float(highest) * 1e3
    speeds = re.findall(r"^cpu MHz\s*:\s*([\d.]+)", read_text(proc_root / "cpuinfo"), flags=re.MULTILINE)
    return max(map(float, speeds)) * 1e6 if speeds else None


def read_hwloc(host: Host) -> HwlocOpinion | None:
    view = ask_hwloc()
    return None if view is None else compare(host, view)


def this_host() -> Host:
    return read_host()


def _counted(names: tuple[str, ...]) -> str:
    counts = {name: names.count(name) for name in dict.fromkeys(names)}
    return ", ".join(f"{count} x {name}" for name, count in counts.items()) or "none"


def _nvidia_driver(path: Path) -> str | None:
    found = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", read_text(path))
    return found[1] if found else None
