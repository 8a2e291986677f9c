"""Findings of made-up hosts: what judges are tested with."""

from dataclasses import replace
from typing import Any

from topout.preflight.check import Check
from topout.preflight.facts import Facts, Framework, Kernel, Limits, Link, LinkSample

GIB = 2**30

LIMITS = Limits(
    memory_bytes=64 * GIB,
    machine_memory_bytes=64 * GIB,
    available_bytes=60 * GIB,
    shm_bytes=32 * GIB,
    shm_free_bytes=32 * GIB,
    open_files=65536,
    num_cores=8,
    name_address="10.0.0.1",
)
FRAMEWORK = Framework(
    version="2.13.0",
    cpu_capability="AVX512",
    has_mkl=True,
    has_onednn=True,
    has_openmp=True,
    has_distributed=True,
    has_gloo=True,
)


def facts(host: str = "n1", **found: Any) -> Facts:
    """A host of 8 cores on which all is well."""
    default: dict[str, Any] = {
        "host_number": int(host.strip("n") or 1) - 1 if host.strip("n").isdigit() else 0,
        "versions": {"python": "3.11.7", "torch": "2.13.0", "kernel": "6.1"},
        "hardware": {"processor": "Some CPU", "cores": "8 (16 logical)", "sockets": "1", "GPUs": "none"},
        "limits": LIMITS,
        "framework": FRAMEWORK,
        "cpu_clock_hz": 2e9,
        "cpu_flags": ("avx2", "fma", "avx512f"),
    }
    return Facts(host=host, **{**default, **found})


def limited(host: str = "n1", **changes: Any) -> Facts:
    return facts(host, limits=replace(LIMITS, **changes))


def built(host: str = "n1", flags: tuple[str, ...] = ("avx2", "fma", "avx512f"), **changes: Any) -> Facts:
    return facts(host, framework=replace(FRAMEWORK, **changes), cpu_flags=flags)


def kernel(name: str = "matrix product", rate: float = 1e12, **changes: Any) -> Kernel:
    """One that takes a second: `rate` is FLOP/s, or B/s for triad and copy."""
    is_memory = name in ("triad", "copy")
    default: dict[str, Any] = {
        "shape": "1024³",
        "dtype": "float32",
        "device": "cpu",
        "library": "torch",
        "num_threads": 8,
        "flops": 1.0 if is_memory else rate,
        "moved_bytes": rate if is_memory else 1e9,
        "fastest_s": 1.0,
        "median_s": 1.0,
        "num_repeats": 5,
    }
    return Kernel(name=name, **{**default, **changes})


def link(alpha_s: float, beta_bytes_per_s: float, **changes: Any) -> Link:
    """A link that follows its model exactly."""
    sizes = (64, 4096, 65536, 1 << 20, 8 << 20)
    samples = tuple(LinkSample(num_bytes=n, times_s=(alpha_s + n / beta_bytes_per_s,) * 3) for n in sizes)
    default: dict[str, Any] = {
        "link_class": "between hosts",
        "operation": "point-to-point",
        "transport": "tcp",
        "hosts": ("n1", "n2"),
        "num_ranks": 2,
        "samples": samples,
    }
    return Link(**{**default, **changes})


def named_check(checks: list[Check], name: str) -> Check:
    """The check whose name begins so; the names that there are, when there is none."""
    found = [check for check in checks if check.name.startswith(name)]
    assert found, f"no {name!r} among {[check.name for check in checks]}"
    return found[0]
