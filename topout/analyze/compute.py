"""Arithmetic: floating-point operations a second, and their share of what the devices could do.

The count comes from the autograd graph of one step (model FLOPs: recomputation does not count). Peaks of accelerators
come from `hardware.toml`; a processor's is what a matrix product reached where the rank tried one, else it is assumed
from its cores, and the share with it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from topout.analyze.accelerator import runs_ahead
from topout.analyze.device import memory_bound_share
from topout.analyze.evaluations import computes_unseen
from topout.analyze.steps import Phases
from topout.schema.hardware import assumed_cpu_flops_per_s, find_device
from topout.schema.measures import Compute
from topout.schema.shares import COMPUTE
from topout.trace.readers.kineto import Profile
from topout.trace.table import RankTable


def measure_compute(phases: Phases, profiles: Sequence[Profile], shares: Mapping[str, float]) -> Compute:
    counted = [table.facts.get("flops_per_step") for table in phases.tables]
    known = [float(value) for value in counted if isinstance(value, int | float) and value > 0]
    flops_per_step = sum(known) if len(known) == len(counted) else None
    flops_per_s = flops_per_step * len(phases.steps) / (phases.elapsed_ns / 1e9) if flops_per_step else None
    peaks = [_peak(table) for table in phases.tables]
    peak = sum(value for value, _ in peaks if value is not None) if all(value for value, _ in peaks) else None
    on_device = all(runs_ahead(table) and not computes_unseen(table) for table in phases.tables)
    return Compute(
        flops_per_step=flops_per_step,
        flops_per_s=flops_per_s,
        peak_flops_per_s=peak,
        peak_origin=peaks[0][1] if peak is not None else None,
        # a peak that was exceeded is no peak, and a share of it says nothing
        model_flops_utilisation=flops_per_s / peak if flops_per_s and peak and flops_per_s <= peak else None,
        memory_bound_share=memory_bound_share(profiles, sum(shares.get(name, 0.0) for name in COMPUTE)),
        host_share=shares["other"] if on_device else None,
    )


def _peak(table: RankTable) -> tuple[float | None, str]:
    facts: Mapping[str, Any] = table.facts
    name = facts.get("device_name")
    if isinstance(name, str):
        device = find_device(name)
        if device is None:
            return None, "table"
        return device.flops_per_s(facts.get("flop_dtype"), uses_tf32=bool(facts.get("uses_tf32"))), "table"
    measured = facts.get("measured_peak_flops_per_s")
    if isinstance(measured, int | float) and measured > 0:
        return float(measured), "measured"
    cores = facts.get("affinity")
    num_cores = facts.get("num_threads") or (len(cores) if isinstance(cores, list) else None)
    return (assumed_cpu_flops_per_s(int(num_cores)), "assumed") if num_cores else (None, "assumed")
