"""Steps of a rank that drives an accelerator: the device's own time takes the place of what the host saw.

The host runs ahead, so its rows for forward, backward and optimizer only tell how fast it launched, and its copies
how long it waited for the device to catch up. What the device left open of a step is given to what held the host
meanwhile: input, explicit communication, and the rest is `other`. Exposed communication inside the device's backward
stays in backward here; kernels (`--profile`) tell it apart.

The time between two events may hold gaps in which the device had nothing queued. In some steps it was held back before
a phase (`record/torch_taps/held_back.py`), and did it without a gap: only so much of the phase is work, the rest is the
host's, and `other`.

Only some steps are followed. In the others the device is taken to have as much to do as it usually had; where nothing
held the host, it worked in as much of the time. Work that a fast host leaves behind fills later steps: a barrier that
only lets the device catch up is no waiting.
"""

from collections.abc import Callable

import numpy as np

from topout.analyze.segments import PHASE
from topout.record.row_names import DRY, LATE, QUEUED
from topout.schema.event import Kind
from topout.trace.table import Bools, Int64s, RankTable

DEVICE_PHASES = ("copy", "forward", "backward", "optimizer", "bubble")
_DEVICE = [PHASE[name] for name in DEVICE_PHASES]
_HELD_HOST = [PHASE[name] for name in ("input", "tensor", "wait", "transfer")]
_SERIAL = [PHASE[name] for name in ("evaluation", "checkpoint")]
_FEWEST_QUEUED = 3
"""Steps in which the device was held back before a phase, to tell how much of it is work."""
_NUM_BESIDE = 6
"""Steps with which they are compared, where the device was not seen to run dry."""
_MOST_STEPS_AHEAD = 32
"""A host is ahead of its device by a thousand launches at most, and the smallest step has some tens."""


def runs_ahead(table: RankTable) -> bool:
    """Whether the rank drives an accelerator that keeps its own time."""
    return bool((table.kind == Kind.DEVICE).any())


def device_ns(table: RankTable, steps: Int64s) -> Int64s:
    """[steps, DEVICE_PHASES]: work between device events; all zero where a step's events were not seen."""
    result = np.zeros((len(steps), len(DEVICE_PHASES)), dtype=np.int64)
    rows = np.flatnonzero(table.kind == Kind.DEVICE)
    followed = np.unique(table.ref[rows])
    is_wanted = np.isin(followed, steps)
    for number, phase in enumerate(DEVICE_PHASES):
        result[np.searchsorted(steps, followed[is_wanted]), number] = _work_ns(table, rows, followed, phase)[is_wanted]
    return result


def _work_ns(table: RankTable, rows: Int64s, followed: Int64s, phase: str) -> Int64s:
    """[followed]: of the time that a phase took the device."""

    def lengths_ns(name: str, has: Callable[[Int64s], Bools] | None = None) -> Int64s:
        """`has` tells by their values which rows of the name count."""
        ids = [number for number, known in enumerate(table.names) if known == name]
        chosen = np.isin(table.name_id[rows], ids)
        if has is not None:
            chosen &= has(table.value[rows])
        found = np.zeros(len(followed), dtype=np.int64)
        # events of two streams may come in any order, and a length below zero would be taken from the other phases
        length_ns = np.maximum(table.duration_ns[rows[chosen]], 0)
        np.add.at(found, np.searchsorted(followed, table.ref[rows[chosen]]), length_ns)
        return found

    full_ns, dry_ns = lengths_ns(phase, lambda values: values != 1), lengths_ns(phase, lambda values: values == 1)
    gaps_ns = dry_ns + lengths_ns(phase + DRY)
    queued_ns = lengths_ns(phase + QUEUED, lambda values: values != LATE)
    if np.count_nonzero(queued_ns) < _FEWEST_QUEUED:
        # what was late took no less than work does
        queued_ns = lengths_ns(phase + QUEUED)
    share = _share_of_gaps(full_ns, gaps_ns, queued_ns)
    full_ns = _without_waits(full_ns, gaps_ns, queued_ns)
    # a device that ran dry before a copy had nothing to do there, as far as nobody knows better
    return full_ns + (dry_ns if share is None else np.rint(share * gaps_ns).astype(np.int64))


def _share_of_gaps(full_ns: Int64s, gaps_ns: Int64s, queued_ns: Int64s) -> float | None:
    """Of what ended with nothing left to do: how much was work, by steps in which all was queued and those beside them.

    `full_ns` of these ended with more to do, and is work whatever was queued.
    """
    queued, with_gaps = np.flatnonzero(queued_ns), np.flatnonzero(gaps_ns)
    if len(queued) < _FEWEST_QUEUED or len(with_gaps) == 0:
        return None
    after = np.minimum(np.searchsorted(with_gaps, queued), len(with_gaps) - 1)
    before = np.maximum(after - 1, 0)
    is_nearer = queued - with_gaps[before] < np.abs(with_gaps[after] - queued)
    nearest = with_gaps[np.where(is_nearer, before, after)]
    shares = (queued_ns[queued] - full_ns[nearest]) / gaps_ns[nearest]
    return float(np.median(np.clip(shares, 0.0, 1.0)))


def _without_waits(full_ns: Int64s, gaps_ns: Int64s, queued_ns: Int64s) -> Int64s:
    """Of phases that ended with more to do, and only so: a device may have waited before its last kernel was there.

    It has worked as much of them as the longest that was queued takes of the shortest beside those that was not: most
    devices work all the while, and are not to be found idle because batches differ.
    """
    is_full = (full_ns > 0) & (gaps_ns == 0)
    queued, full = np.flatnonzero(queued_ns), np.flatnonzero(is_full)
    if len(queued) < _FEWEST_QUEUED or len(full) == 0:
        return full_ns
    beside = full[np.argsort(np.abs(full - np.median(queued)), kind="stable")[:_NUM_BESIDE]]
    share = min(1.0, float(queued_ns[queued].max() / full_ns[beside].min()))
    return np.where(is_full, np.rint(share * full_ns).astype(np.int64), full_ns)


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
    if not is_followed.all() and _keeps_pace(busy_ns, free_ns, is_followed, usual_ns):
        # nothing is left behind then; steps differ, and their differences from the usual would add up to a lag
        return np.minimum(free_ns, usual_ns)
    return np.full_like(free_ns, usual_ns)


def _keeps_pace(busy_ns: Int64s, free_ns: Int64s, is_followed: Bools, usual_ns: int) -> bool:
    """Whether the host waits for its device in every step, or is what it waits for: in none is it far ahead."""
    unseen_ns = free_ns[~is_followed]
    if np.median(unseen_ns) < 0.9 * usual_ns:
        return False
    if np.mean(unseen_ns < 0.5 * usual_ns) < 0.1:
        return True
    # many short steps: the device has as little to do in them, or the host leaves its work behind
    is_short = is_followed & (free_ns < 0.5 * usual_ns)
    return bool(is_short.any() and np.median(busy_ns[is_short] - 1.5 * free_ns[is_short]) <= 0)


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
