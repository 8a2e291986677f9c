"""One step of LARS or LAMB over flat float32 memory, in C: `optimizer.h` says what each field means.

Not for deciding what may be handed over: addresses are taken on trust. `train.optim.native_step` checks them.
"""

import ctypes
from functools import cache

import numpy as np
from numpy.typing import NDArray

from topout.native.bindings import Library

LARS, LAMB = 0, 1
FIRST_PASS, SECOND_PASS = 1, 2
BOTH_PASSES = FIRST_PASS | SECOND_PASS
ALL_FINITE, _NO_MEMORY = -1, -2

TENSOR = np.dtype(
    [
        ("weights", np.uint64), ("gradient", np.uint64), ("first", np.uint64), ("second", np.uint64),
        ("num", np.int64), ("sums", np.float64, 2), ("decay", np.float64), ("corrections", np.float64, 2),
        ("adapts", np.int64),
    ]
)  # fmt: skip
"""`optimizer_tensor`."""


class Rule(ctypes.Structure):
    """`optimizer_rule`."""

    _fields_ = [
        ("method", ctypes.c_int32), ("passes", ctypes.c_int32), ("rate_is_outside", ctypes.c_int32),
        ("num_threads", ctypes.c_int32), ("rate", ctypes.c_double), ("trust", ctypes.c_double),
        ("eps", ctypes.c_double), ("beta1", ctypes.c_double), ("beta2", ctypes.c_double),
    ]  # fmt: skip


def take_step(library: Library, rule: Rule, tensors: NDArray[np.void]) -> int:
    """Updates all tensors, and their `sums`; the number of the first with a norm that is not finite, or ALL_FINITE."""
    parallel = _openmp() if rule.num_threads > 1 else None
    bad = int(library.optimizer_step(ctypes.byref(rule), tensors.ctypes.data, len(tensors), parallel))
    if bad == _NO_MEMORY:
        raise MemoryError("no room for the optimizer's list of chunks")
    return bad


@cache
def _openmp() -> int | None:
    """Where the OpenMP that torch has loaded starts its threads; None where it cannot be found."""
    try:
        return ctypes.cast(ctypes.CDLL(None).GOMP_parallel, ctypes.c_void_p).value
    except (OSError, AttributeError):
        return None
