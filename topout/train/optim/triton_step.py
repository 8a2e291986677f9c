"""Steps on a GPU in three launches for all tensors of a group: norms of chunks, their sums, the update.

Nothing comes to the host, and addresses go to the device only when they have changed. Where Triton is absent or fails,
`device_step` goes on from where this stopped. Not for tensors in torn memory.
"""

import importlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from topout.train.optim import device_step
from topout.train.optim.plan import Deal
from topout.train.optim.slot import SMALLEST_NORM, Rule, Slot, corrections_of

_LOG = logging.getLogger(__name__)
_CHUNK, _BLOCK, _NUM_WARPS = 16384, 2048, 8
_NARROW = (torch.float16, torch.bfloat16)


def can_take(slot: Slot) -> bool:
    known = (torch.float32, *_NARROW)
    return bool(
        slot.is_flat
        and slot.weights.device.type == "cuda"
        and slot.first.dtype == torch.float32
        and slot.weights.dtype in known
        and slot.gradient.dtype in known
    )


def kernels() -> Any:
    """The module of kernels; None where Triton is not installed."""
    try:
        return importlib.import_module("topout.train.optim.triton_kernels")
    except ImportError:
        return None


@dataclass
class _Table:
    """What the kernels know of a list of tensors, on their device."""

    chunk_tensor: Any
    chunk_begin: Any
    first_chunk: Any
    partial: Any
    sums: Any
    rows: Any
    is_aligned: bool
    numbers: Any = None
    known_numbers: Any = None
    corrections: tuple[float, float] = (1.0, 1.0)


class TritonSteps:
    """The passes of one optimizer; keeps what it has sent to the device."""

    def __init__(self) -> None:
        self._cuts: dict[Any, tuple[Any, Any, Any]] = {}
        self._kernels = kernels()

    @property
    def is_usable(self) -> bool:
        return self._kernels is not None

    def whole_step(self, rule: Rule, slots: Deal) -> Any:
        sums = self.first_pass(rule, slots)
        self.second_pass(rule, slots, sums)
        return sums

    def first_pass(self, rule: Rule, slots: Deal) -> Any:
        return self._tried(lambda: self._launch_first(rule, slots), lambda: device_step.first_pass(rule, slots))

    def second_pass(self, rule: Rule, slots: Deal, sums: Any) -> None:
        self._tried(lambda: self._launch_second(rule, slots, sums), lambda: device_step.second_pass(rule, slots, sums))

    def _tried(self, launch: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
        """A kernel that cannot be compiled has changed nothing, so torch can do that pass instead."""
        if self._kernels is None:
            return otherwise()
        try:
            return launch()
        except Exception as error:
            _LOG.warning("Triton cannot step this optimizer (%s); torch does, more slowly.", error)
            self._kernels = None
            return otherwise()

    def _launch_first(self, rule: Rule, slots: Deal) -> Any:
        table = self._table(rule, slots)
        if not len(table.chunk_tensor):
            return table.sums  # this rank has no part of any of them
        with torch.cuda.device(slots[0].weights.device):
            self._kernels.first_pass[(len(table.chunk_tensor),)](
                table.rows, table.numbers, table.chunk_tensor, table.chunk_begin, table.partial,
                float(rule.beta1), float(rule.beta2), float(rule.eps), *table.corrections,
                is_lamb=rule.method == "lamb",
                **self._kinds(slots), is_aligned=table.is_aligned, chunk=_CHUNK, block=_BLOCK, num_warps=_NUM_WARPS,
            )  # fmt: skip
            self._kernels.add_up[(len(slots),)](table.partial, table.first_chunk, table.sums, block=256, num_warps=4)
        return table.sums

    def _launch_second(self, rule: Rule, slots: Deal, sums: Any) -> None:
        table = slots.notes["table"]
        if not len(table.chunk_tensor):
            return
        with torch.cuda.device(slots[0].weights.device):
            self._kernels.second_pass[(len(table.chunk_tensor),)](
                table.rows, table.numbers, table.chunk_tensor, table.chunk_begin, sums, float(rule.rate),
                float(rule.beta1), float(rule.eps), float(rule.trust), SMALLEST_NORM, *table.corrections,
                is_lamb=rule.method == "lamb", rate_is_outside=rule.rate_is_outside, **self._kinds(slots),
                is_aligned=table.is_aligned, chunk=_CHUNK, block=_BLOCK, num_warps=_NUM_WARPS,
            )  # fmt: skip
        # Triton writes past torch, whose version counters tell autograd that weights have changed
        torch.autograd.graph.increment_version([slot.weights for slot in slots])

    def _kinds(self, slots: Sequence[Slot]) -> dict[str, Any]:
        """Triton's names of the tensors' types, which all slots of a call share."""
        types = self._kernels.tl
        names = {torch.float32: types.float32, torch.float16: types.float16, torch.bfloat16: types.bfloat16}
        return {"of_weights": names[slots[0].weights.dtype], "of_gradient": names[slots[0].gradient.dtype]}

    def _table(self, rule: Rule, slots: Deal) -> _Table:
        table: _Table | None = slots.notes.get("table")
        if table is None:
            table = slots.notes["table"] = self._new_table(slots)
        # nearly always all tensors have taken equally many steps, and nothing has to be sent for that
        first = slots[0].steps
        is_one_count = all(slot.steps == first for slot in slots)
        table.corrections = corrections_of(rule, slots[0]) if is_one_count else (1.0, 1.0)
        own = [(1.0, 1.0)] * len(slots) if is_one_count else [corrections_of(rule, slot) for slot in slots]
        numbers = [(slot.adapts, slot.decay, pair) for slot, pair in zip(slots, own, strict=True)]
        if numbers != table.known_numbers:
            table.known_numbers = numbers
            rows = [(float(adapts), decay, *pair) for adapts, decay, pair in numbers]
            table.numbers = _sent(torch.tensor(rows, dtype=torch.float32, device="cpu"), slots[0].weights.device)
        return table

    def _new_table(self, slots: Deal) -> _Table:
        sizes = tuple(slot.weights.numel() for slot in slots)
        device = slots[0].weights.device
        # gradients that move make a new table in every step; how tensors are cut into chunks stays
        cut = self._cuts.get((device, sizes))
        if cut is None:
            cut = self._cuts[device, sizes] = _cut(sizes, device)
        addresses = [_addresses(slot) for slot in slots]
        rows = torch.tensor([(*row, size) for row, size in zip(addresses, sizes, strict=True)], device="cpu")
        return _Table(
            *cut,
            partial=torch.empty(max(1, len(cut[0])), 2, dtype=torch.float32, device=device),
            sums=torch.zeros(len(slots), 2, dtype=torch.float32, device=device),
            rows=_sent(rows, device),
            is_aligned=all(address % 16 == 0 for row in addresses for address in row),
        )


def _addresses(slot: Slot) -> tuple[int, int, int, int]:
    second = 0 if slot.second is None else slot.second.data_ptr()
    return slot.address, slot.gradient.data_ptr(), slot.first.data_ptr(), second


def _cut(sizes: tuple[int, ...], device: Any) -> tuple[Any, Any, Any]:
    """By chunk: which tensor, and from where; by tensor: its first chunk."""
    counts = torch.tensor([-(-size // _CHUNK) for size in sizes], device="cpu")
    first_chunk = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    tensor = torch.repeat_interleave(torch.arange(len(sizes), device="cpu"), counts)
    begin = (torch.arange(len(tensor), device="cpu") - first_chunk[tensor]) * _CHUNK
    return _sent(tensor, device), _sent(begin, device), _sent(first_chunk, device)


def _sent(values: Any, device: Any) -> Any:
    """To the device, from pinned memory, so that the host does not wait for what the device has still to do."""
    return values.pin_memory().to(device, non_blocking=True)
