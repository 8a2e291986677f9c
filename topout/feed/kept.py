"""What outlives an iteration of a loader: the memory of its batches, and what was found out about threads and decoders.

Pinned memory takes a tenth of a second to get for each batch; made anew for every epoch it was a fifth of a short one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from topout.feed.delivery import Delivery, host_empty
from topout.feed.slabs import Slab, SlabPool
from topout.feed.tuning import Chooser
from topout.packs.fields import Field


@dataclass(kw_only=True)
class Kept:
    """One for each loader."""

    pool: SlabPool
    chooser: Chooser | None = None


def make_slab(fields: Sequence[Field], delivery: Delivery, batch_size: int, *, is_pinned: bool) -> Slab:
    """Memory for one batch of images; gathered arrays come from the reader, new each time."""
    if delivery.image is None:
        return Slab({}, ())
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    owners: list[Any] = []

    def empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
        array, owner = host_empty(shape, dtype, is_pinned=is_pinned)
        owners.append(owner)
        return array

    for field in fields:
        if field.name == delivery.image:
            arrays[field.name] = delivery.images_array(batch_size, empty)
        elif field.is_scalar:
            arrays[field.name] = empty((batch_size,), np.int64 if field.kind == "int" else np.float64)
        elif field.is_fixed:
            arrays[field.name] = empty((batch_size, *(field.shape or ())), field.dtype)
    lists = tuple(field.name for field in fields if field.is_variable and field.name != delivery.image)
    return Slab(arrays, lists, keep=owners)
