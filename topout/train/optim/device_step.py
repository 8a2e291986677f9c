"""Steps on a GPU in torch alone: lists of tensors in a few kernels, and no norm ever comes to the host.

Not the fastest: `triton_step` reads each tensor twice where this reads it five times. It serves where Triton is absent.
"""

from collections.abc import Sequence
from typing import Any

import torch

from topout.train.optim.slot import SMALLEST_NORM, Rule, Slot, corrections_of


def whole_step(rule: Rule, slots: Sequence[Slot]) -> Any:
    sums = first_pass(rule, slots)
    second_pass(rule, slots, sums)
    return sums


def first_pass(rule: Rule, slots: Sequence[Slot]) -> Any:
    """Sums of squares of each slot, on the device: of the weights, and of the gradient or LAMB's direction."""
    if rule.method == "lamb":
        _advance(rule, slots)
    sums = torch.zeros(len(slots), 2, dtype=torch.float32, device=slots[0].weights.device)
    numbers = [number for number, slot in enumerate(slots) if slot.adapts]
    if not numbers:
        return sums
    adapting = [slots[number] for number in numbers]
    others = _directions(rule, adapting) if rule.method == "lamb" else [slot.gradient for slot in adapting]
    norms = [
        torch.stack(torch._foreach_norm(tensors, dtype=torch.float32))
        for tensors in ([slot.weights for slot in adapting], others)
    ]
    found = torch.stack(norms, 1).square_()
    if len(numbers) == len(slots):
        return found
    # a slice where it is one, since an index would have to travel to the device
    begin, end = numbers[0], numbers[-1] + 1
    if end - begin == len(numbers):
        sums[begin:end] = found
    else:
        sums[torch.tensor(numbers, device=sums.device)] = found
    return sums


def second_pass(rule: Rule, slots: Sequence[Slot], sums: Any) -> None:
    """Tensors whose sums are not finite become not finite as a whole; `norm_watch` tells."""
    ratios = _ratios(rule, slots, sums)
    weights = [slot.weights for slot in slots]
    if rule.method == "lamb":
        steps = _directions(rule, slots)
        torch._foreach_mul_(steps, list(ratios.mul(rule.rate).unbind()))
        torch._foreach_sub_(weights, steps)
        return
    inner = ratios if rule.rate_is_outside else ratios * rule.rate
    momenta = [slot.first for slot in slots]
    entering = _decayed([slot.gradient for slot in slots], slots)
    entering = torch._foreach_mul(entering, list(inner.unbind()))
    torch._foreach_mul_(momenta, rule.beta1)
    torch._foreach_add_(momenta, entering)
    torch._foreach_sub_(weights, momenta, alpha=rule.rate if rule.rate_is_outside else 1.0)


def _ratios(rule: Rule, slots: Sequence[Slot], sums: Any) -> Any:
    norms = sums.to(torch.float32).sqrt()
    weights, others = norms[:, 0], norms[:, 1]
    if rule.method == "lars":
        # one decay for all that adapt: a group has one
        decay = max((slot.decay for slot in slots if slot.adapts), default=0.0)
        ratios = rule.trust * weights / (others + decay * weights + rule.eps)
    else:
        ratios = weights / others
    # those that do not adapt have sums of 0
    return torch.where((weights >= SMALLEST_NORM) & (others >= SMALLEST_NORM), ratios, 1.0)


def _advance(rule: Rule, slots: Sequence[Slot]) -> None:
    gradients = [slot.gradient.to(slot.first.dtype) for slot in slots]
    torch._foreach_lerp_([slot.first for slot in slots], gradients, 1 - rule.beta1)
    seconds = [slot.second for slot in slots]
    torch._foreach_mul_(seconds, rule.beta2)
    torch._foreach_addcmul_(seconds, gradients, gradients, 1 - rule.beta2)


def _directions(rule: Rule, slots: Sequence[Slot]) -> list[Any]:
    corrections = [corrections_of(rule, slot) for slot in slots]
    roots = torch._foreach_sqrt([slot.second for slot in slots])
    torch._foreach_mul_(roots, [after for _, after in corrections])
    torch._foreach_add_(roots, rule.eps)
    found = torch._foreach_div([slot.first for slot in slots], roots)
    torch._foreach_mul_(found, [before for before, _ in corrections])
    return _decayed(found, slots)


def _decayed(tensors: list[Any], slots: Sequence[Slot]) -> list[Any]:
    """Tensors plus decay times weights; the tensors themselves stay as they are."""
    if not any(slot.decay for slot in slots):
        return tensors
    return list(
        torch._foreach_add(tensors, torch._foreach_mul([slot.weights for slot in slots], [s.decay for s in slots]))
    )
