"""Steps of a rank that drives an accelerator: the device's own time takes the place of what the host saw.

The host runs ahead, so its rows for forward, backward and optimizer only tell how fast it launched, and its copies
how long it waited for the device to catch up. What the device left open of a step is given to what held the host
meanwhile: input, explicit communication, and the rest is `other`. Exposed communication inside the device's backward
stays in backward here; kernels (`--profile`) tell it apart.

Only some steps are followed. In the others the device is taken to have as much to do as it usually had; where nothing
held the host, it worked in as much of the time. Work that a fast host leaves behind fills later steps: a barrier that
only lets the device catch up is no waiting.
"""

import numpy as np

from topout.analyze.segments import PHASE
from topout.schema.event import Kind
from topout.trace.table import Bools, Int64s, RankTable

DEVICE_PHASES = ("copy", "forward", "backward", "optimizer", "bubble")
_DEVICE = [PHASE[name] for name in DEVICE_PHASES]
_HELD_HOST = [PHASE[name] for name in ("input", "tensor", "wait", "transfer")]
_SERIAL = [PHASE[name] for name in ("evaluation", "checkpoint")]
_MOST_STEPS_AHEAD = 32
"""A host is ahead of its device by a thousand launches at most, and the smallest step has some tens."""


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
    is_followed: Bools = busy_ns.sum(axis=1) > 0
    if not is_followed.any():
        return host_ns
    result = np.zeros_like(host_ns)
    result[:, _SERIAL] = host_ns[:, _SERIAL]
    left_ns = (host_ns - result).sum(axis=1)
    worked_ns = _worked_ns(host_ns, left_ns, busy_ns.sum(axis=1), is_followed)
    like_ns = np.where(is_followed[:, np.newaxis], busy_ns, busy_ns[is_followed].sum(axis=0))
    result[:, _DEVICE] = _divide(worked_ns, like_ns)
    left_ns = left_ns - worked_ns
    for phase in _HELD_HOST:
        result[:, phase] = np.minimum(host_ns[:, phase], left_ns)
        left_ns = left_ns - result[:, phase]
    result[:, PHASE["other"]] = left_ns
    return result


def _worked_ns(host_ns: Int64s, left_ns: Int64s, busy_ns: Int64s, is_followed: Bools) -> Int64s:
    """[steps]: how much of what serial phases left of a step the device worked."""
    free_ns = left_ns - host_ns[:, _HELD_HOST].sum(axis=1)
    given_ns = np.where(is_followed, busy_ns, _unseen_ns(busy_ns, free_ns, is_followed))
    wanted_ns = given_ns + _lag_ns(given_ns, host_ns.sum(axis=1))
    worked_ns = np.minimum(busy_ns, left_ns)[is_followed].sum()
    idle_ns = np.maximum(free_ns - busy_ns, 0)[is_followed].sum()
    likely_ns = (free_ns * (worked_ns / max(worked_ns + idle_ns, 1))).astype(np.int64)
    worked: Int64s = np.minimum(np.where(is_followed, wanted_ns, np.maximum(wanted_ns, likely_ns)), left_ns)
    return worked


def _unseen_ns(busy_ns: Int64s, free_ns: Int64s, is_followed: Bools) -> Int64s:
    """[steps]: what the device had to do in steps that were not followed."""
    usual_ns = _usual_ns(busy_ns, free_ns, is_followed)
    if not is_followed.all() and _keeps_pace(free_ns[~is_followed], usual_ns):
        # nothing is left behind then; steps differ, and their differences from the usual would add up to a lag
        return np.minimum(free_ns, usual_ns)
    return np.full_like(free_ns, usual_ns)


def _keeps_pace(free_ns: Int64s, usual_ns: int) -> bool:
    """Whether the host waits for its device in every step, or is what it waits for: in none is it far ahead."""
    return bool(np.median(free_ns) >= 0.9 * usual_ns and np.mean(free_ns < 0.5 * usual_ns) < 0.1)


def _usual_ns(busy_ns: Int64s, free_ns: Int64s, is_followed: Bools) -> int:
    """What the device has to do in a step, from those that were followed."""
    if is_followed.all():
        return 0
    seen_ns = busy_ns[is_followed]
    # a step in which it waited for a late peer is no measure of the others
    mean_ns = np.minimum(seen_ns, 2 * np.median(seen_ns)).mean()
    # following takes the host some time, and a device that has run dry waits for it
    held_up_ns = np.median(free_ns[is_followed]) - np.median(free_ns[~is_followed])
    return max(0, round(float(mean_ns - max(0.0, held_up_ns))))


def _lag_ns(given_ns: Int64s, step_ns: Int64s) -> Int64s:
    """[steps]: what the device still had to do where each step of the host began."""
    most_ns = _MOST_STEPS_AHEAD * int(given_ns.mean())
    lag_ns, lags_ns = 0, []
    for gained_ns in (given_ns - step_ns).tolist():
        lags_ns.append(lag_ns)
        lag_ns = min(max(lag_ns + gained_ns, 0), most_ns)
    return np.array(lags_ns, dtype=np.int64)


def _divide(whole_ns: Int64s, like_ns: Int64s) -> Int64s:
    """Each whole in the proportions of its row, exactly."""
    parts: Int64s = np.rint(whole_ns[:, np.newaxis] * (like_ns / like_ns.sum(axis=1, keepdims=True))).astype(np.int64)
    parts[np.arange(len(parts)), like_ns.argmax(axis=1)] += whole_ns - parts.sum(axis=1)
    return parts
