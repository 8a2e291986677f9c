"""Steps in torch alone, tensor by tensor, for the CPU: any floating type, any memory order.

torch's fused kernels do what they can without touching the gradient. Not for GPUs, where each norm would have to come
to the host: `device_step` keeps them there.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch

from topout.train.optim.slot import Rule, Slot, corrections_of, lie_alike, ratio_of

# what torch.optim.SGD(fused=True) and AdamW(fused=True) call
_fused_sgd = getattr(torch, "_fused_sgd_", None)
_fused_adamw = getattr(torch, "_fused_adamw_", None)
_SMALLEST_INNER = 1e-8


def whole_step(rule: Rule, slots: Sequence[Slot]) -> Any:
    """Both passes, tensor by tensor while it is in the cache; sums of squares of each slot."""
    sums = [(0.0, 0.0)] * len(slots)
    alike = _step_plain_ones(rule, slots)
    for number, slot in enumerate(slots):
        if number in alike:
            continue
        direction = _direction(rule, slot)
        squares = sums[number] = _squares(rule, slot, direction)
        if math.isfinite(squares[0]) and math.isfinite(squares[1]):
            _update(rule, slot, ratio_of(rule, slot, *squares), direction)
    return torch.tensor(sums, dtype=torch.float64, device="cpu").reshape(len(slots), 2)


def _step_plain_ones(rule: Rule, slots: Sequence[Slot]) -> set[int]:
    """Steps the tensors that do not adapt in one call of SGD's or AdamW's kernel; their numbers."""
    # SGD's kernel without momentum wants no place for it
    kernel = (_fused_sgd if rule.beta1 > 0 else None) if rule.method == "lars" else _fused_adamw
    is_alike = [not s.adapts and s.is_flat and s.decay == 0 and s.weights.dtype == torch.float32 for s in slots]
    plain = [
        number
        for number, slot in enumerate(slots)
        if is_alike[number] and _have_one_dtype(slot) and (rule.method == "lars" or rule.corrects)
    ]
    if kernel is None or not plain or rule.rate <= _SMALLEST_INNER:
        return set()
    mine = [slots[number] for number in plain]
    if rule.method == "lars":
        inner, outer = (1.0, rule.rate) if rule.rate_is_outside else (rule.rate, 1.0)
        _sgd(mine, rule, inner=inner, outer=outer)
    else:
        _adamw([slot.weights for slot in mine], mine, rule, rule.rate)
    return set(plain)


def first_pass(rule: Rule, slots: Sequence[Slot]) -> Any:
    """Sums of squares of each slot: of the weights, and of the gradient or LAMB's direction."""
    if rule.method == "lamb":
        for slot in slots:
            _advance(rule, slot)
    squares = [_squares(rule, slot, _new_direction(rule, slot) if rule.method == "lamb" else None) for slot in slots]
    return torch.tensor(squares, dtype=torch.float64, device="cpu").reshape(len(slots), 2)


def second_pass(rule: Rule, slots: Sequence[Slot], sums: Any) -> None:
    for slot, squares in zip(slots, sums.tolist(), strict=True):
        if math.isfinite(squares[0]) and math.isfinite(squares[1]):
            # computed again, so that no more than one direction is kept
            direction = _new_direction(rule, slot) if rule.method == "lamb" else None
            _update(rule, slot, ratio_of(rule, slot, *squares), direction)


def _squares(rule: Rule, slot: Slot, direction: Any) -> tuple[float, float]:
    if not slot.adapts:
        return 0.0, 0.0
    return square_sum(slot.weights), square_sum(slot.gradient if rule.method == "lars" else direction)


def square_sum(tensor: Any) -> float:
    """A dot product is more exact than a norm, and faster."""
    if tensor.numel() == 0:
        return 0.0
    wide = tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()
    flat = wide.as_strided((wide.numel(),), (1,)) if lie_alike(wide) else wide.reshape(-1)
    found = float(torch.dot(flat, flat))
    # squares leave float32 long before values do
    return found if 1e-20 < found < 1e30 else float(torch.linalg.vector_norm(wide.double())) ** 2


def _update(rule: Rule, slot: Slot, ratio: float, direction: Any) -> None:
    if rule.method == "lamb":
        slot.weights.add_(direction, alpha=-rule.rate * ratio)
        return
    inner, outer = (ratio, rule.rate) if rule.rate_is_outside else (rule.rate * ratio, 1.0)
    has_kernel = _fused_sgd is not None and rule.beta1 > 0
    if has_kernel and slot.is_flat and _have_one_dtype(slot) and inner > _SMALLEST_INNER:
        _sgd([slot], rule, inner=inner, outer=outer)
        return
    slot.first.mul_(rule.beta1).add_(slot.gradient, alpha=inner)
    if slot.decay:
        slot.first.add_(slot.weights, alpha=inner * slot.decay)
    slot.weights.sub_(slot.first, alpha=outer)


def _direction(rule: Rule, slot: Slot) -> Any:
    """LAMB: moments are brought up to date, and the direction comes from the same pass where AdamW's kernel can."""
    if rule.method == "lars":
        return None
    if _fused_adamw is None or not slot.is_flat or not _have_one_dtype(slot) or not rule.corrects:
        _advance(rule, slot)
        return _new_direction(rule, slot)
    # a step of AdamW from zero with rate 1 is the direction, turned around
    direction = torch.zeros_like(slot.weights)
    _adamw([direction], [slot], rule, 1.0)
    direction.neg_()
    return direction.add_(slot.weights, alpha=slot.decay) if slot.decay else direction


def _sgd(slots: Sequence[Slot], rule: Rule, *, inner: float, outer: float) -> None:
    """v = momentum v + inner (g + decay w); w = w - outer v; all slots have one decay."""
    assert _fused_sgd is not None
    # 1 - dampening is what the gradient enters the momentum with; it has 16 digits after the point
    _fused_sgd(
        [slot.weights for slot in slots], [slot.gradient for slot in slots], [slot.first for slot in slots],
        weight_decay=slots[0].decay, momentum=rule.beta1, lr=outer, dampening=1 - inner, nesterov=False,
        maximize=False, is_first_step=False,
    )  # fmt: skip


def _adamw(weights: list[Any], slots: Sequence[Slot], rule: Rule, rate: float) -> None:
    """Brings moments up to date, and moves `weights` by the rate against their direction."""
    assert _fused_adamw is not None
    counts = [torch.tensor(slot.steps, dtype=torch.float32, device="cpu") for slot in slots]
    _fused_adamw(
        weights, [slot.gradient for slot in slots], [slot.first for slot in slots], [slot.second for slot in slots],
        [], counts, amsgrad=False, lr=rate, beta1=rule.beta1,
        beta2=rule.beta2, weight_decay=0.0, eps=rule.eps, maximize=False,
    )  # fmt: skip


def _advance(rule: Rule, slot: Slot) -> None:
    slot.first.mul_(rule.beta1).add_(slot.gradient, alpha=1 - rule.beta1)
    gradient = slot.gradient if slot.gradient.dtype == slot.second.dtype else slot.gradient.to(slot.second.dtype)
    slot.second.mul_(rule.beta2).addcmul_(gradient, gradient, value=1 - rule.beta2)


def _new_direction(rule: Rule, slot: Slot) -> Any:
    before, after = corrections_of(rule, slot)
    direction = slot.second.sqrt().mul_(after).add_(rule.eps)
    torch.div(slot.first, direction, out=direction).mul_(before)
    return direction.add_(slot.weights, alpha=slot.decay) if slot.decay else direction


def _have_one_dtype(slot: Slot) -> bool:
    return bool(slot.weights.dtype == slot.gradient.dtype == slot.first.dtype)
