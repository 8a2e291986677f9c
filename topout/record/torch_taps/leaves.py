"""Whether what gets gradients changes, in a loop that no optimizer of torch.optim steps: else nothing is trained.

Looks at the first bytes of each leaf of the autograd graph, by their addresses: an operation of torch would run
whatever modes the script has set. Not for leaves on a device, which could not be read without waiting for it.
"""

import ctypes
import zlib
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.weak import TensorWeakRef

from topout.record.recorder import Recorder
from topout.record.row_names import CHANGED, REPLACED, UNCHANGED

_LOOKED_AT_BYTES = 1024
_MOST_LEAVES = 4096
_NUM_LOOKS = 8
"""So many backwards without a change, and there is none to be expected soon; later ones are looked at ever less."""


class LeafWatch:
    """The leaves of one backward, until one of them has changed or all are gone."""

    def __init__(self, recorder: Recorder, leaves: Sequence[Any]) -> None:
        self._recorder = recorder
        self._leaves = [TensorWeakRef(leaf) for leaf in leaves[:_MOST_LEAVES]]
        self._first = list(map(_digest, leaves[:_MOST_LEAVES]))
        self._num_looks = 0

    def look(self) -> bool:
        """After a backward; False when there is nothing more to see."""
        self._num_looks += 1
        number = self._num_looks
        if number > _NUM_LOOKS and number & (number - 1):
            return True
        alive = [
            (leaf, first)
            for reference, first in zip(self._leaves, self._first, strict=True)
            if (leaf := reference()) is not None
        ]
        if not alive:
            self._recorder.fact(gradients_of=REPLACED)
        if not alive or any(first is None for _, first in alive):
            return False
        if any(_digest(leaf) != first for leaf, first in alive):
            self._recorder.fact(gradients_of=CHANGED)
            return False
        if number >= _NUM_LOOKS:
            self._recorder.fact(gradients_of=UNCHANGED)
        return True


def _digest(leaf: Any) -> int | None:
    """None where it cannot be read: not here, not dense, or its memory is gone for the while."""
    try:
        if type(leaf) not in (torch.Tensor, torch.nn.Parameter) or leaf.device.type != "cpu":
            return None
        num_bytes = leaf.numel() * leaf.element_size()
        held_bytes = leaf.untyped_storage().nbytes() - leaf.storage_offset() * leaf.element_size()
        if not leaf.is_contiguous() or not 0 < num_bytes <= held_bytes:
            return None
        return zlib.crc32(ctypes.string_at(leaf.data_ptr(), min(_LOOKED_AT_BYTES, num_bytes)))
    except Exception:
        return None
