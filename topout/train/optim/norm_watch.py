"""Notices norms that are not finite on a GPU, some steps later, so that the device never waits.

Sums of squares minus themselves are 0, or not a number for ever: they are added up on the device, sent to the host
every 16 steps and read 16 steps after that. Not a cure, and not for the CPU, where norms are looked at at once.
"""

from typing import Any

import torch

from topout.train.optim.plan import Deal
from topout.train.optim.refusals import not_finite

EVERY = 16


class NormWatch:
    """Watches one optimizer; ranks that hold equal norms raise at the same step."""

    def __init__(self, label: str) -> None:
        self.label = label
        self._found: dict[tuple[str, ...], Any] = {}
        self._asked: list[tuple[tuple[str, ...], Any, Any]] = []
        self._steps = 0

    def add(self, slots: Deal, sums: Any) -> None:
        """Sums of squares of some slots, on their device."""
        names = slots.notes.get("names")
        if names is None:
            names = slots.notes["names"] = tuple(slot.name for slot in slots)
        if names not in self._found:
            self._found[names] = torch.zeros_like(sums)
        self._found[names].add_(sums - sums)

    def after_step(self) -> None:
        self._steps += 1
        if self._steps % EVERY == 0:
            self.settle()
            self._asked = [(names, *_sent(found)) for names, found in self._found.items()]

    def settle(self) -> None:
        """Reads what was asked last; raises if something was found."""
        asked, self._asked = self._asked, []
        for names, found, event in asked:
            if event is not None:
                event.synchronize()
            bad = found.isnan()
            if bad.any():
                number = int(bad.any(1).nonzero()[0])
                raise not_finite(self.label, names[number], tuple(found[number].tolist()), steps_late=2 * EVERY)


def _sent(value: Any) -> tuple[Any, Any]:
    if value.device.type != "cuda":
        return value.to("cpu", copy=True), None
    here = torch.empty(value.shape, dtype=value.dtype, device="cpu", pin_memory=True)
    here.copy_(value, non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    return here, event
