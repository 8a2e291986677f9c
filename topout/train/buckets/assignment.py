"""Which gradients travel together, and in which order: read from a DDP module's reducer, and given to a new one.

    groups = in_force(ddp)         # [[5, 4, 3], [2, 1, 0]]: numbers of parameters, by group, in the order of backward
    if fits(groups, ddp): renew(ddp, hooks, groups)

DDP forgets it: each start begins in the order in which parameters were defined. A sum of three floats depends on the
rank that begins it, and that on where in its group an element lies.
"""

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

Assignment = Sequence[Sequence[int]]

_CHOOSES = "_compute_bucket_assignment_by_size"
"""The function of torch.distributed that DDP asks for the first groups."""

_given: "weakref.WeakKeyDictionary[Any, Assignment]" = weakref.WeakKeyDictionary()
"""Of DDP modules whose reducer was given one: what is in force until they rebuild."""


def in_force(ddp: Any) -> Assignment | None:
    """Of the next step; None where it is not known, as before DDP has rebuilt its groups in its second step."""
    if not ddp._has_rebuilt_buckets:
        return _given.get(ddp)
    if not ddp._get_ddp_logging_data().get("has_rebuilt_buckets"):
        # DDP writes it down one step later
        ddp.logger.set_runtime_stats_and_log()
    return _read(str(ddp._get_ddp_logging_data().get("rebuilt_per_bucket_param_indices") or ""))


def fits(groups: Any, ddp: Any) -> bool:
    """Whether a reducer made now can average so: every parameter once, those of one kind together."""
    parameters, expect_sparse_gradient = ddp._build_params_for_reducer()
    if not (hasattr(dist, _CHOOSES) and isinstance(groups, list) and all(map(_is_group, groups))):
        return False
    if sorted(number for group in groups for number in group) != list(range(len(parameters))):
        return False
    kinds = [
        (parameter.dtype, parameter.device, number if is_sparse else None)
        for number, (parameter, is_sparse) in enumerate(zip(parameters, expect_sparse_gradient, strict=True))
    ]
    return all(len({kinds[number] for number in group}) == 1 for group in groups)


@contextmanager
def given(assignment: Assignment | None, parameters: Sequence[Any]) -> Iterator[None]:
    """Whoever asks for groups of these very parameters meanwhile gets the assignment."""
    if assignment is None:
        yield
        return
    chooses = getattr(dist, _CHOOSES)

    def answer(tensors: Any, *more: Any) -> Any:
        if tensors is not parameters:
            return chooses(tensors, *more)
        # DDP turns both round; the sizes are for its log
        groups = [list(group) for group in reversed(assignment)]
        return groups, [sum(parameters[number].nbytes for number in group) for group in groups]

    setattr(dist, _CHOOSES, answer)
    try:
        yield
    finally:
        setattr(dist, _CHOOSES, chooses)


def note(ddp: Any, assignment: Assignment | None) -> None:
    """Of a reducer that has just been made."""
    if assignment is None:
        _given.pop(ddp, None)
    else:
        _given[ddp] = assignment


def _read(text: str) -> Assignment | None:
    groups = [group.split() for group in text.split(",")]
    if not text or not all(number.isdecimal() for group in groups for number in group):
        return None
    return [[int(number) for number in group] for group in groups]


def _is_group(group: Any) -> bool:
    return isinstance(group, list) and bool(group) and all(type(number) is int for number in group)
