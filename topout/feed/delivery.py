"""From a filled slab to the tensors that the script gets, on the host or on a device.

On a device, bytes travel as uint8 on a stream of their own and are normalised there: a quarter of float32's traffic,
hidden behind the step before. The script's stream is made to wait for them; the host never waits.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from topout.feed.augment import ImageTransform
from topout.feed.batch_augment import finish_images, mix
from topout.feed.pipeline import Array, BatchPlan
from topout.feed.slabs import Slab, SlabPool

_NUMPY = {"uint8": np.uint8, "float32": np.float32, "bfloat16": np.uint16}
"""bfloat16 is unknown to numpy; its bits travel as uint16."""


@dataclass(kw_only=True)
class Ready:
    """A batch and what is to be counted about it."""

    value: Any
    num_samples: int
    num_bytes: int
    num_skipped: int
    tensors: list[Any] = field(default_factory=list)
    """On a device: to be known to the script's stream."""
    event: Any = None
    """On a device: recorded when the batch is complete."""


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """How batches of one loader look."""

    image: str | None
    """The field that is decoded; None where there is none."""
    transform: ImageTransform | None
    dtype: str
    is_channels_last: bool
    device: Any = None
    stream: Any = None
    is_pair: bool = False
    """Images and labels alone: handed out as (images, labels)."""

    @property
    def finishes_in_torch(self) -> bool:
        """Whether slabs hold plain bytes, the rest being done on the batch."""
        return self.image is not None and (
            self.device is not None or bool(self.transform and self.transform.on_batches)
        )

    @property
    def slab_dtype(self) -> Any:
        return _NUMPY["uint8" if self.finishes_in_torch else self.dtype]

    def images_array(self, batch_size: int, empty: Callable[..., Array]) -> Array:
        assert self.transform is not None
        height, width = self.transform.size
        shape = (batch_size, height, width, 3) if self.is_channels_last else (batch_size, 3, height, width)
        return empty(shape, self.slab_dtype)

    def deliver(self, plan: BatchPlan, slab: Slab, pool: SlabPool, decoded: Any = None) -> Ready:
        """`decoded` are images that are on the device already, uint8 with channels first."""
        buffers = slab.buffers
        ready = Ready(value=None, num_samples=len(plan), num_bytes=buffers.num_bytes, num_skipped=buffers.num_skipped)
        if self.device is None:
            ready.value = self._shaped(plan, slab.views(len(plan)), buffers.lists, None)
            pool.lend(slab)
        else:
            self._send(plan, slab, pool, decoded, ready)
        return ready

    def _send(self, plan: BatchPlan, slab: Slab, pool: SlabPool, decoded: Any, ready: Ready) -> None:
        import torch

        views = {name: array[: len(plan)] for name, array in slab.buffers.arrays.items()}
        if decoded is not None and self.image is not None:
            views.pop(self.image, None)
        with torch.cuda.stream(self.stream):
            ready.value = self._shaped(plan, views, slab.buffers.lists, decoded)
            ready.event = torch.cuda.Event()
            ready.event.record(self.stream)
        values = ready.value.values() if isinstance(ready.value, dict) else ready.value
        ready.tensors = [value for value in values if isinstance(value, torch.Tensor)]
        slab.fence = ready.event.synchronize
        pool.give(slab)

    def _shaped(self, plan: BatchPlan, views: dict[str, Array], lists: dict[str, list[Any]], decoded: Any) -> Any:
        tensors: dict[str, Any] = {name: self._tensor(name, view) for name, view in views.items()}
        if decoded is not None and self.image is not None:
            tensors[self.image] = decoded if self.is_channels_last else decoded.contiguous()
        if self.image is not None and self.transform is not None and self.finishes_in_torch:
            import torch

            images = finish_images(self.transform, tensors[self.image], plan.keys, getattr(torch, self.dtype))
            tensors[self.image] = images
            if "label" in tensors:
                mixed = mix(self.transform, images, tensors["label"], plan.keys)
                tensors[self.image], tensors["label"] = mixed
        if self.is_pair and self.image is not None:
            return tensors[self.image], tensors["label"]
        return {**tensors, **{name: list(values) for name, values in lists.items() if name not in tensors}}

    def _tensor(self, name: str, view: Array) -> Any:
        import torch

        tensor = torch.from_numpy(view)
        if name == self.image:
            if view.dtype == np.uint16:
                tensor = tensor.view(torch.bfloat16)
            if self.is_channels_last:
                tensor = tensor.permute(0, 3, 1, 2)
        return tensor if self.device is None else tensor.to(self.device, non_blocking=True)


def host_empty(shape: tuple[int, ...], dtype: Any, *, is_pinned: bool) -> tuple[Array, Any]:
    """An array, and what owns its memory. Pinned memory is what a device copies from without stopping the host."""
    if not is_pinned:
        return np.empty(shape, dtype), None
    import torch

    num_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    owner = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
    return owner.numpy().view(dtype).reshape(shape), owner
