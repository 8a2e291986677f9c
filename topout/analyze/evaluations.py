"""Where a rank evaluated: rows that say so, a model in evaluation mode, or batches that no backward followed.

In a loop that calls no backward (torch.autograd.grad, torch.func, JAX, NumPy) an optimizer or the end of a step follows
what is trained on. Not for an evaluation that ends with the step it stands in, and that neither a row nor a mode tells.

An evaluation reaches to the next training batch. After the last step it reaches to the last row, and a model that stays
in evaluation mode without one evaluates as long as it did before; if it never did, this is no evaluation.
"""

import numpy as np
from numpy.typing import NDArray

from topout.analyze.segments import Stretches
from topout.schema.event import Kind
from topout.trace.table import Bools, Int64s, RankTable

_NEVER = np.iinfo(np.int64).max


def find_evaluations(table: RankTable, end_ns: int) -> Stretches:
    """`end_ns` is where an evaluation ends that no training follows."""
    said = table.rows(Kind.EVALUATION)
    found = Stretches(table.start_ns[said], table.end_ns[said])
    batches = table.rows(Kind.INPUT, Kind.LOADER)
    mode = table.rows(Kind.MODE)
    trained_ns = _signs_of_training(table)
    is_training = feeds_training(table, batches, trained_ns)
    leaves = mode[table.value[mode] == 0]
    signs = np.sort(np.concatenate([leaves, batches[~is_training]]))
    if len(signs) == 0:
        return found
    training_ns = table.start_ns[batches[is_training]]
    return_ns = table.start_ns[mode[table.value[mode] != 0]]
    start_ns = table.start_ns[signs]
    batch_ns, step_ns = _next(training_ns, start_ns), _next(trained_ns, start_ns)
    # without a loader, training shows first in its backward: then only the return to training mode tells the end
    back_ns = _last_before(return_ns, step_ns)
    own_end_ns = np.maximum(table.end_ns[signs], np.where(back_ns >= start_ns, back_ns, start_ns))
    ends = np.where(batch_ns < step_ns, batch_ns, np.where(step_ns < _NEVER, own_end_ns, end_ns))
    return found + Stretches(start_ns, np.maximum(ends, start_ns))


def trails_off(table: RankTable, last_step_ns: int) -> int:
    """Where the rank's work ends: with its last step, or with the evaluation or save that follows it."""
    after = table.start_ns >= last_step_ns
    batches = table.rows(Kind.INPUT, Kind.LOADER)
    is_training = feeds_training(table, batches, table.start_ns[table.rows(Kind.BACKWARD)])
    mode = table.rows(Kind.MODE)
    usual_ns = _longest_evaluation_ns(table, last_step_ns)
    leaves = mode[table.value[mode] == 0]
    if usual_ns == 0:  # to leave training for good, before an export or an upload, is no sign of an evaluation
        leaves = leaves[leaves < max(mode[table.value[mode] != 0], default=0)]
    signs = np.concatenate([table.rows(Kind.EVALUATION, Kind.CHECKPOINT), leaves, batches[~is_training]])
    if not after[signs].any():
        return last_step_ns
    told = table.rows(*(kind for kind in Kind if kind not in (Kind.STEP, Kind.ARRIVAL, Kind.DEVICE, Kind.COUNTER)))
    told = told[after[told]]
    last = int(told[np.argmax(table.end_ns[told])])
    end_ns = int(table.end_ns[last])
    if table.ended_ns is None:
        return end_ns
    late_mode = mode[after[mode]]
    # a loop of its own instead of a loader leaves no rows: it lasts as long as the evaluations before it
    if len(late_mode) > 0 and table.value[late_mode[-1]] == 0 and not after[batches].any():
        return max(end_ns, min(int(table.start_ns[late_mode[-1]]) + usual_ns, table.ended_ns))
    return min(end_ns + _work_on_last_batch(table, last), max(end_ns, table.ended_ns))


def _longest_evaluation_ns(table: RankTable, last_step_ns: int) -> int:
    """Of those before the last step's end; 0 when there was none."""
    found = find_evaluations(table, last_step_ns)
    own_ns = (found.end_ns - found.start_ns)[found.start_ns < last_step_ns]
    return int(own_ns.max(initial=0))


def _work_on_last_batch(table: RankTable, last: int) -> int:
    """What the script did with a last batch, which no row follows: as much as with the ones before it."""
    if table.kind[last] != Kind.INPUT:
        return 0
    batches = table.rows(Kind.INPUT)
    own = batches[(table.ref[batches] == table.ref[last]) & (table.value[batches] != 0)]
    between_ns = table.start_ns[own[1:]] - table.end_ns[own[:-1]]
    return max(0, int(np.median(between_ns))) if len(between_ns) else 0


def computes_unseen(table: RankTable) -> bool:
    """Whether no tap sees this loop compute: one of JAX or NumPy, or of torch without `backward()`."""
    return len(table.rows(Kind.BACKWARD, Kind.CHUNK)) == 0


def _signs_of_training(table: RankTable) -> Int64s:
    """When something was trained on a batch before: at backwards, else where optimizers step, else where steps end."""
    backwards, updates = table.rows(Kind.BACKWARD), table.rows(Kind.OPTIMIZER)
    if len(backwards) or len(updates):
        return table.start_ns[backwards if len(backwards) else updates]
    return table.end_ns[table.rows(Kind.STEP)]


def feeds_training(table: RankTable, batches: NDArray[np.intp], backward_ns: Int64s) -> Bools:
    """For each of these rows of loaders, whether its iterator feeds training: a backward follows one of its batches."""
    if len(backward_ns) == 0:  # then a missing one tells nothing
        backward_ns = _signs_of_training(table)
    iterators = table.ref[batches]
    start_ns = table.start_ns[batches]
    order = np.lexsort((start_ns, iterators))
    in_order, times = iterators[order], start_ns[order]
    is_last = np.append(in_order[1:] != in_order[:-1], True) if len(order) else np.empty(0, dtype=bool)
    next_own_ns = np.append(times[1:], _NEVER)
    next_backward_ns = _next(backward_ns, times)
    # an only batch may come while a teacher or frozen layers are in evaluation mode: training does not end that
    is_apart = _is_evaluating(table, times) & ~(
        _is_only(table, batches)[order] & _is_evaluating(table, next_backward_ns)
    )
    # after an iterator's last batch only a backward before anybody's next batch counts
    next_any_ns = _next(start_ns, times + 1)
    until_ns = np.where(is_last, np.where(is_apart, times, next_any_ns), next_own_ns)
    is_followed = next_backward_ns < until_ns
    return np.isin(iterators, np.unique(in_order[is_followed]))


def _is_only(table: RankTable, rows: NDArray[np.intp]) -> Bools:
    """For each of these rows of loaders, whether its iterator handed out one batch at most."""
    is_batch = (table.kind[rows] == Kind.INPUT) & (table.value[rows] != 0)
    _, iterators = np.unique(table.ref[rows], return_inverse=True)
    only: Bools = np.bincount(iterators, weights=is_batch)[iterators] <= 1
    return only


def has_only_modes(table: RankTable) -> bool:
    """Whether nothing but the mode of a model tells that this rank evaluated: rollouts and generation look the same."""
    batches = table.rows(Kind.INPUT, Kind.LOADER)
    is_training = feeds_training(table, batches, table.start_ns[table.rows(Kind.BACKWARD)])
    return len(table.rows(Kind.EVALUATION)) == 0 and bool(is_training.all())


def _is_evaluating(table: RankTable, times_ns: Int64s) -> Bools:
    mode = table.rows(Kind.MODE)
    if len(mode) == 0:
        return np.zeros(len(times_ns), dtype=bool)
    before = np.searchsorted(table.start_ns[mode], times_ns, side="right") - 1
    evaluates: Bools = (before >= 0) & (table.value[mode[np.maximum(before, 0)]] == 0)
    return evaluates


def _next(sorted_ns: Int64s, after_ns: Int64s) -> Int64s:
    """The first of `sorted_ns` at or after each time; never when there is none."""
    return np.append(sorted_ns, _NEVER)[np.searchsorted(sorted_ns, after_ns)]


def _last_before(sorted_ns: Int64s, before_ns: Int64s) -> Int64s:
    padded = np.concatenate([[np.iinfo(np.int64).min], sorted_ns])
    return padded[np.searchsorted(sorted_ns, before_ns)]
