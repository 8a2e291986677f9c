"""Steps of a rank that drives an accelerator: the device's own time takes the place of what the host saw.

The host runs ahead, so its rows for forward, backward and optimizer only tell how fast it launched, and its copies
how long it waited for the device to catch up. What the device left open of a step is given to what held the host
meanwhile: input, explicit communication, and the rest is `other`. Exposed communication inside the device's backward
stays in backward here; kernels (`--profile`) tell it apart.
"""

import numpy as np

from topout.analyze.segments import PHASE
from topout.schema.event import Kind
from topout.trace.table import Bools, Int64s, RankTable

DEVICE_PHASES = ("copy", "forward", "backward", "optimizer", "bubble")
_HELD_HOST = ("input", "tensor", "wait", "transfer")


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
        # events of two streams may come in any order, and a length below zero would be taken from the other phases
        np.add.at(result[:, number], place[is_known], np.maximum(table.duration_ns[own[is_known]], 0))
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
    return _like_followed(result, host_ns, busy_ns.sum(axis=1) > 0)


def _like_followed(result: Int64s, host_ns: Int64s, is_followed: Bools) -> Int64s:
    """Steps that the recorder did not follow take the mean of those that it did; the host knows their serial phases."""
    if not is_followed.any():
        return host_ns
    aside = [PHASE["evaluation"], PHASE["checkpoint"]]
    means = result[is_followed].sum(axis=0).astype(np.float64)
    means[aside] = 0.0
    filled = result.copy()
    for step in np.flatnonzero(~is_followed):
        serial_ns = host_ns[step, aside]
        left = int(host_ns[step].sum() - serial_ns.sum())
        filled[step] = (left * means / max(means.sum(), 1.0)).astype(np.int64)
        filled[step, aside] = serial_ns
        filled[step, means.argmax()] += host_ns[step].sum() - filled[step].sum()
    return filled
