"""What a group's step found out about its tensors, kept for the next step as long as all of them stay where they are.

Looking at 161 tensors from Python takes longer than a GPU needs to step them. Not for sharded parameters, whose parts
are looked up in every step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from topout.train.optim.slot import Slot


class Deal(list[Slot]):
    """Slots that one implementation steps together; `notes` is its own memory of them."""

    def __init__(self, slots: Sequence[Slot] = ()) -> None:
        super().__init__(slots)
        self.notes: dict[str, Any] = {}


@dataclass
class Plan:
    """The slots of a group, dealt out to implementations; `kind` is what steps them."""

    signature: list[Any] | None
    slots: list[Slot]
    deals: dict[Any, Deal]
    counters: list[Any] = field(default_factory=list)
    """LAMB: the step counts of these slots, one tensor for all that are equal."""
    names: tuple[str, ...] = ()

    def still_holds(self, signature: list[Any] | None) -> bool:
        if signature is None or self.signature != signature:
            return False
        return all(slot.holder[self.names[0]] is slot.state for slot in self.slots)

    def take_up(self) -> None:
        """The gradients of a new step."""
        for slot in self.slots:
            slot.gradient = slot.parameter.grad

    def count(self) -> None:
        for counter in self.counters:
            counter.add_(1)
        for slot in self.slots:
            slot.steps += 1

    def let_go(self) -> None:
        """Gradients are the user's to free."""
        for slot in self.slots:
            slot.gradient = None


def signature_of(group: Mapping[str, Any], state: Mapping[Any, Any]) -> list[Any] | None:
    """Changes with anything that a plan depends on; None where that cannot be told cheaply."""
    found: list[Any] = [group["adapts"], float(group["weight_decay"]), id(state), len(state)]
    for parameter in group["params"]:
        gradient = parameter.grad
        if gradient is None:
            found.append(None)
            continue
        if type(gradient) is not torch.Tensor or gradient.is_sparse:
            return None
        found.append((parameter.data_ptr(), gradient.data_ptr(), gradient.stride(), gradient.dtype))
    return found


def shared_counters(slots: Sequence[Slot]) -> list[Any]:
    """Gives slots of equal step counts one tensor to count in, new to all others that may hold the old one."""
    counters: dict[float, Any] = {}
    for slot in slots:
        steps = float(slot.holder["step"])
        slot.steps = int(steps)
        slot.holder["step"] = counters.setdefault(steps, torch.tensor(steps, dtype=torch.float32, device="cpu"))
    return list(counters.values())
