"""Steps of a rank that drives an accelerator: the device's own time takes the place of what the host saw.

The host runs ahead, so its rows for forward, backward and optimizer only tell how fast it launched, and its copies
how long it waited for the device to catch up. What the device left open of a step is given to what held the host
meanwhile: input, explicit communication, and the rest is `other`. Exposed communication inside the device's backward
stays in backward here; kernels (`--profile`) tell it apart.
"""

import numpy as np

from topout.analyze.segments import PHASE
from topout.schema.event import Kind
from topout.trace.table import Int64s, RankTable

DEVICE_PHASES = ("copy", "forward", "backward", "optimizer")
_HELD_HOST = ("input", "wait", "transfer")


def runs_ahead(table: RankTable) -> bool:
    """Whether the rank drives an accelerator that keeps its own time."""
    return bool((table.kind == Kind.DEVICE).any())


def device_ns(table: RankTable, steps: Int64s) -> Int64s:
    """[steps, DEVICE_PHASES]: time between device events; all zero where a step's events were not seen."""
    result = np.zeros((len(steps), len(DEVICE_PHASES)), dtype=np.int64)
    rows = np.flatnonzero(table.kind == Kind.DEVICE)
    for number, phase in enumerate(DEVICE_PHASES):
        ids = [i for i, name in enumerate(table.names) if name == phase]
        own = rows[np.isin(table.name_id[rows], ids)]
        place = np.searchsorted(steps, table.ref[own])
        is_known = (place < len(steps)) & (steps[np.minimum(place, len(steps) - 1)] == table.ref[own])
        np.add.at(result[:, number], place[is_known], table.duration_ns[own[is_known]])
    return result


def on_device(host_ns: Int64s, busy_ns: Int64s) -> Int64s:
    """[steps, PHASES] as the device lived them; every step keeps its length exactly."""
    result = np.zeros_like(host_ns)
    left = host_ns.sum(axis=1)
    for phase in ("evaluation", "checkpoint"):
        result[:, PHASE[phase]] = host_ns[:, PHASE[phase]]
        left = left - host_ns[:, PHASE[phase]]
    for phase, wanted in zip(DEVICE_PHASES, busy_ns.T, strict=True):
        result[:, PHASE[phase]] = np.minimum(wanted, left)
        left = left - result[:, PHASE[phase]]
    for phase in _HELD_HOST:
        result[:, PHASE[phase]] = np.minimum(host_ns[:, PHASE[phase]], left)
        left = left - result[:, PHASE[phase]]
    result[:, PHASE["other"]] = left
    return np.where(busy_ns.sum(axis=1)[:, None] > 0, result, host_ns)
