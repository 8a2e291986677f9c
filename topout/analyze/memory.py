"""Memory: how much was used at most, whether it ran out, and the batch that would have fitted.

    largest batch = batch * (limit - fixed) / (peak - fixed)

What does not grow with the batch (parameters, gradients, optimizer state) is `fixed`; the rest is taken to be
proportional to it. A prediction, not a promise: fragmentation and workspaces do not scale.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from topout.analyze.counters import covers, peak, total_per_s
from topout.analyze.steps import Phases
from topout.schema.measures import Memory
from topout.trace.table import RankTable

_SIGNS = re.compile(
    r"CUDA out of memory|HIP out of memory|can't allocate memory|cannot allocate memory|^MemoryError\b"
    r"|torch\.(cuda\.)?OutOfMemoryError|out of memory: the kernel killed",
    re.IGNORECASE | re.MULTILINE,
)
_ON_DEVICE = re.compile(r"(CUDA|HIP) out of memory|OutOfMemoryError", re.IGNORECASE)
_REQUESTED = re.compile(r"tried to allocate\s+([\d.]+)\s*(bytes|[KMGT]iB)", re.IGNORECASE)
_SOME, _ALL = 0.1, 0.9
"""Of parameters and optimizer state; an optimizer's counts of steps lie on the host in any case."""
_HARDLY = 0.01
"""Of a device's memory: nobody offloads from one that is empty."""
_FAULT_S = 3e-6
"""Processor time of one page fault, at most: measured 2.3 µs on a virtual machine."""
_UNITS = {"bytes": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}


def measure_memory(tables: Sequence[RankTable], run: Mapping[str, Any], failure: str | None) -> Memory:
    """`failure` is the text of `first_failure.txt`, where there is one."""
    told = next((t.facts["out_of_memory"] for t in tables if isinstance(t.facts.get("out_of_memory"), dict)), None)
    is_out = told is not None or bool(failure and _SIGNS.search(failure))
    requested = (told or {}).get("requested_bytes") or (_requested_bytes(failure) if is_out and failure else None)
    peak_host, peak_device = _peak_host(tables), _peak_device(tables)
    host_total = _host_total(run)
    device_total = _largest(tables, "device_total_bytes")
    parts = {name: _largest(tables, name) for name in ("parameter_bytes", "gradient_bytes", "optimizer_bytes")}
    ran_out_on = _ran_out_on(told, failure or "") if is_out else None
    is_on_device = ran_out_on == "device" if ran_out_on else device_total is not None
    ranks_per_host = max(Counter(table.host for table in tables).values(), default=1)
    limit = device_total if is_on_device else host_total // ranks_per_host if host_total is not None else None
    used = peak_device if is_on_device else peak_host
    memory = Memory(
        peak_host_bytes=peak_host,
        host_total_bytes=host_total,
        peak_device_bytes=peak_device,
        device_total_bytes=device_total,
        parameter_bytes=parts["parameter_bytes"],
        gradient_bytes=parts["gradient_bytes"],
        optimizer_bytes=parts["optimizer_bytes"],
        is_sharded=any(table.facts.get("is_sharded") is True for table in tables),
        is_kept=_is_kept(tables),
        is_out_of_memory=is_out,
        ran_out_on=ran_out_on,
        requested_bytes=requested,
    )
    memory = _with_host_state(memory, _largest(tables, "host_state_bytes") or 0)
    if memory.ran_out_beside_devices:
        # by loaders, what is offloaded and what the script keeps: none grows with the batch as activations do
        return memory
    largest = _largest_batch(
        batch=_largest(tables, "batch_size"),
        limit=limit,
        needed=None if used is None and requested is None else (used or 0) + (requested or 0),
        fixed=sum(value or 0 for value in parts.values()),
        is_too_large=is_out,
    )
    return replace(memory, largest_batch=largest)


def _is_kept(tables: Sequence[RankTable]) -> bool | None:
    told = {table.facts.get("keeps_memory") for table in tables} - {None}
    return any(is_kept is True for is_kept in told) if told else None


def with_faults(memory: Memory, phases: Phases) -> Memory:
    """Adds what making pages anew costs in the steps, after the ranks whose samples tell of these steps."""
    window = (phases.start_ns, phases.start_ns + phases.elapsed_ns)
    names = ("page_faults", "system_ns", "cpu_ns")
    seen = [table for table in phases.tables if all(covers(table.counters.get(name), *window) for name in names)]
    faults_per_s, system, cpu = (total_per_s(seen, name, *window) for name in names)
    if faults_per_s is None or system is None or not cpu:
        return memory
    mean_step_s = phases.elapsed_ns / 1e9 / len(phases.steps)
    return replace(
        memory,
        faults_per_step=faults_per_s / len(seen) * mean_step_s,
        fault_share=min(system, 1e9 * _FAULT_S * faults_per_s) / cpu,
    )


def _with_host_state(memory: Memory, on_host: int) -> Memory:
    """Says of state in the host's memory, beside devices, whether it is offloaded or ranks compute there."""
    state = (memory.parameter_bytes or 0) + (memory.optimizer_bytes or 0)
    if memory.device_total_bytes is None or on_host <= _SOME * state:
        return memory
    is_unused = (memory.peak_device_bytes or 0) < _HARDLY * memory.device_total_bytes
    if is_unused and on_host >= _ALL * state:
        return replace(memory, computes_on_host=True)
    return replace(memory, offloaded_bytes=on_host)


def _largest_batch(
    *, batch: int | None, limit: int | None, needed: int | None, fixed: int, is_too_large: bool
) -> int | None:
    if not batch or limit is None or needed is None or needed <= fixed or limit <= fixed:
        return None
    predicted = int(batch * (limit - fixed) / (needed - fixed))
    if is_too_large:  # whatever the arithmetic says
        predicted = min(predicted, batch - 1)
    return predicted if predicted >= 1 else None  # no batch at all would fit: what failed does not grow with it


def _ran_out_on(told: Mapping[str, Any] | None, failure: str) -> str:
    is_on_device = told.get("device") != "cpu" if told is not None else _ON_DEVICE.search(failure) is not None
    return "device" if is_on_device else "host"


def _requested_bytes(text: str) -> int | None:
    found = _REQUESTED.search(text)
    return round(float(found[1]) * _UNITS[found[2].lower()]) if found else None


def _peak_host(tables: Sequence[RankTable]) -> int | None:
    """Sampled, workers included; a short run's highest moment lies between two samples, and the kernel knows it."""
    seen = (peak(tables, "resident_bytes", "worker_resident_bytes"), _largest(tables, "peak_resident_bytes"))
    return max((value for value in seen if value is not None), default=None)


def _peak_device(tables: Sequence[RankTable]) -> int | None:
    """What torch allocated where it told; else what the device held, other processes included."""
    own = _largest(tables, "peak_device_bytes")
    return own if own is not None else peak(tables, "gpu_memory_bytes")


def _largest(tables: Sequence[RankTable], fact: str) -> int | None:
    return max((int(t.facts[fact]) for t in tables if isinstance(t.facts.get(fact), int)), default=None)


def _host_total(run: Mapping[str, Any]) -> int | None:
    """The smallest host counts: it is the first to run out."""
    told = (host.get("memory_bytes") for host in hosts_of(run))
    return min((size for size in told if isinstance(size, int) and 0 < size < 1 << 63), default=None)


def hosts_of(run: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The hosts in run.json; a run.json that was cut short by hand has none."""
    hosts = run.get("hosts")
    return [host for host in hosts if isinstance(host, dict)] if isinstance(hosts, list) else []
