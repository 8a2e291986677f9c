"""What one step does to one parameter: its memory on this rank, and the numbers of its group.

Not a place for state: slots only point at it. They are kept from step to step, for finding it takes time.
"""

from dataclasses import dataclass
from typing import Any

SMALLEST_NORM = 1.1754943508222875e-38
"""The smallest normal float32; below it, a ratio would not be one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """The numbers of a parameter group in this step; `method` is `lars` or `lamb`.

    LARS has its momentum in `beta1`; with `rate_is_outside` the rate multiplies the momentum, as torch's SGD has it.
    """

    method: str
    rate: float
    eps: float
    beta1: float
    beta2: float = 0.0
    trust: float = 1.0
    rate_is_outside: bool = False
    corrects: bool = True
    """LAMB: whether means are corrected for having begun at zero."""


@dataclass(slots=True)
class Slot:
    """One parameter. Tensors are this rank's part where the parameter is sharded."""

    parameter: Any
    name: str
    weights: Any
    first: Any
    """LARS: momentum; LAMB: mean of gradients."""
    second: Any
    """LAMB: mean of their squares."""
    state: Any
    """What `first` is the local part of."""
    holder: Any
    """The optimizer's dict that has it."""
    address: int
    num_dimensions: int
    is_dense: bool
    """Whether weights and state are dense and in one memory order."""
    is_sharded: bool
    gradient: Any = None
    decay: float = 0.0
    adapts: bool = True
    is_flat: bool = False
    """Whether all tensors, the gradient too, can be walked as flat memory."""
    steps: int = 0
    """LAMB: how many steps these means hold, this one included."""


def ratio_of(rule: Rule, slot: Slot, weight_squares: float, other_squares: float) -> float:
    """LARS: trust |w| / (|g| + decay |w| + eps); LAMB: |w| / |r|. A norm of zero gives 1."""
    weights, other = weight_squares**0.5, other_squares**0.5
    if not slot.adapts or weights < SMALLEST_NORM or other < SMALLEST_NORM:
        return 1.0
    if rule.method == "lars":
        return float(rule.trust * weights / (other + slot.decay * weights + rule.eps))
    return float(weights / other)


def corrections_of(rule: Rule, slot: Slot) -> tuple[float, float]:
    """LAMB: what means that began at zero are multiplied with, before and after the root: 1 / (1 - beta^t)."""
    if not rule.corrects:
        return 1.0, 1.0
    return float(1 / (1 - rule.beta1**slot.steps)), float((1 - rule.beta2**slot.steps) ** -0.5)


def lie_alike(first: Any, *others: Any) -> bool:
    """Whether tensors are dense and have one order of elements in memory."""
    if first.is_contiguous():
        return all(other.is_contiguous() for other in others)
    order = _order(first)
    return _is_dense(order) and all(_order(other) == order for other in others)


def _order(tensor: Any) -> list[tuple[int, int]]:
    """Stride and size of each dimension that has more than one element."""
    return [(step, num) for step, num in zip(tensor.stride(), tensor.shape, strict=True) if num > 1]


def _is_dense(order: list[tuple[int, int]]) -> bool:
    expected = 1
    for step, num in sorted(order):
        if step != expected:
            return False
        expected *= num
    return True
