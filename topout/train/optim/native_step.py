"""Steps in C for float32 on the CPU: one call for all tensors of a group.

Not for parameters of other types or in torn memory: `torch_step` does the same to them, more slowly.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from topout.native import optimizer as native
from topout.native.bindings import library
from topout.train.optim.slot import Rule, Slot, corrections_of

_METHODS = {"lars": native.LARS, "lamb": native.LAMB}


def can_take(slot: Slot) -> bool:
    tensors = (slot.weights, slot.gradient, slot.first)
    return (
        slot.is_flat
        and slot.weights.device.type == "cpu"
        and all(tensor.dtype == torch.float32 for tensor in tensors)
        and library() is not None
    )


def whole_step(rule: Rule, slots: Sequence[Slot]) -> Any:
    """Both passes; sums of squares of each slot, where rows that are not finite were left as they were."""
    return _called(rule, slots, native.BOTH_PASSES)


def first_pass(rule: Rule, slots: Sequence[Slot]) -> Any:
    """Sums of squares of each slot: of the weights, and of the gradient or LAMB's direction."""
    return _called(rule, slots, native.FIRST_PASS)


def second_pass(rule: Rule, slots: Sequence[Slot], sums: Any) -> None:
    _called(rule, slots, native.SECOND_PASS, sums)


def _called(rule: Rule, slots: Sequence[Slot], passes: int, sums: Any = None) -> Any:
    compiled = library()
    assert compiled is not None, "can_take was not asked"
    rows = [
        (
            slot.weights.data_ptr(),
            slot.gradient.data_ptr(),
            slot.first.data_ptr(),
            0 if slot.second is None else slot.second.data_ptr(),
            slot.weights.numel(),
            (0.0, 0.0),
            slot.decay,
            corrections_of(rule, slot),
            slot.adapts,
        )
        for slot in slots
    ]
    tensors = np.array(rows, native.TENSOR)
    if sums is not None:
        tensors["sums"] = sums.numpy()
    numbers = native.Rule(
        method=_METHODS[rule.method],
        passes=passes,
        rate_is_outside=rule.rate_is_outside,
        num_threads=torch.get_num_threads(),
        rate=rule.rate,
        trust=rule.trust,
        eps=rule.eps,
        beta1=rule.beta1,
        beta2=rule.beta2,
    )
    native.take_step(compiled, numbers, tensors)
    # ctypes writes past torch, whose version counters would tell autograd that weights have changed
    torch.autograd.graph.increment_version([slot.weights for slot in slots])
    return torch.from_numpy(np.ascontiguousarray(tensors["sums"]))
