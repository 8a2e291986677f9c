"""A few elements of tensors, to see what is written past torch's count of changes: by NumPy, DLPack, collectives.

    sample = Sample(tensors)
    sample.take()
    sample.is_as_taken()

Few: each is likely out of the caches by then, and nothing hides the time.
"""

from typing import Any

import torch

from topout.train.fused_group import Tensors

_MOST = 8
"""Elements of each tensor."""


class Sample:
    def __init__(self, tensors: Tensors) -> None:
        self._views = list(map(_spread, tensors))
        self._taken: Any = None

    def take(self) -> None:
        self._taken = torch.cat(self._views)

    def is_as_taken(self) -> bool:
        return bool(torch.equal(torch.cat(self._views), self._taken))


def _spread(tensor: Any) -> Any:
    """A view of elements that lie evenly in the memory of a dense tensor."""
    number = min(tensor.numel(), _MOST)
    # from the first to the last one: an even part of the memory would be a whole number of rows, and show one column
    return tensor.detach().as_strided((number,), (max(tensor.numel() - 1, 0) // max(number - 1, 1),))
