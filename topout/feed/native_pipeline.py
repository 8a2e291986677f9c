"""Batches of images by the compiled library: read, verified, decoded, cropped, resized and normalised in one pass.

Threads of its own, no worker processes, no copies through pipes. What the library does not decode (PNG, progressive or
CMYK files, damaged samples) goes to the Python twin, which gives the same pixels. Not for transforms that the library
does not know: `can_run` says which it does.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from topout.feed.augment import CenterCrop, ImageTransform, RandomCrop, RandomResizedCrop, Resize
from topout.feed.decode import MOST_PIXELS
from topout.feed.pipeline import Array, BatchPlan, Buffers, Cancelled, ImagePipeline
from topout.native.bindings import ImageTransformation, Library
from topout.packs.layout import column_name
from topout.packs.pack_view import NativePack, views

_RANDOM_RESIZED_CROP, _RESIZE_AND_CENTRE_CROP, _RESIZE_TO = 0, 1, 2
_PIXELS = {"uint8": 0, "float32": 1, "uint16": 2}
_LARGEST_SIDE = 4096


def can_run(transform: ImageTransform) -> bool:
    """A random resized crop, a resize to one size, or a resize with a centre crop."""
    if max(transform.size) > _LARGEST_SIDE or transform.step(RandomCrop):
        return False
    resize = transform.step(Resize)
    if transform.step(RandomResizedCrop):
        return True
    if resize is None:
        return False
    return isinstance(resize.size, int) == bool(transform.step(CenterCrop))


def as_structure(transform: ImageTransform, table: Array | None, *, is_channels_last: bool) -> ImageTransformation:
    """`table` must outlive the result."""
    height, width = transform.size
    structure = ImageTransformation(
        kind=_RESIZE_TO, out_width=width, out_height=height, flip_probability=transform.flip_share,
        pixels=_PIXELS["uint8" if table is None else table.dtype.name], channels_last=is_channels_last,
        most_pixels=MOST_PIXELS,
    )  # fmt: skip
    if table is not None:
        for channel in range(3):
            structure.values[channel] = table[channel].ctypes.data
    if crop := transform.step(RandomResizedCrop):
        structure.kind = _RANDOM_RESIZED_CROP
        structure.area_low, structure.area_high = crop.scale
        structure.ratio_low, structure.ratio_high = crop.ratio
        structure.log_ratio_low, structure.log_ratio_high = map(math.log, crop.ratio)
    elif isinstance((resize := transform.step(Resize)).size, int):
        structure.kind = _RESIZE_AND_CENTRE_CROP
        structure.short_side = resize.size
    return structure


class NativeImagePipeline:
    """The fast half of an image pipeline, in front of its twin. Used by one thread."""

    def __init__(self, library: Library, twin: ImagePipeline) -> None:
        self.num_threads = twin.num_threads
        self._library = library
        self._twin = twin
        self._packs, self._image = twin.packs, twin.image
        self._table = None if twin.table is None else np.ascontiguousarray(twin.table)
        self._structure = as_structure(twin.transform, self._table, is_channels_last=twin.is_channels_last)
        self._native = [NativePack(pack, library, twin.image, is_mapped=False) for pack in twin.packs.packs]
        self._views = views(self._native)
        self._pool: int | None = None
        self._pool_threads = 0
        self._underway: dict[int, tuple[Any, ...]] = {}

    def run(self, plan: BatchPlan, out: Buffers) -> None:
        self.start(plan, out)()

    def start(self, plan: BatchPlan, out: Buffers) -> Callable[[], None]:
        """Queues a batch behind those under way; call the result, once, to have it finished."""
        if plan.is_cancelled():
            raise Cancelled
        which = (np.searchsorted(self._packs.starts, plan.samples, side="right") - 1).astype(np.int32)
        numbers = plan.samples - self._packs.starts[which]
        for number, native in enumerate(self._native):
            native.open_shards(numbers[which == number])
        status = np.zeros(len(plan), np.uint8)
        pool = self._open_pool()
        batch = self._library.begin(
            pool, packs=self._views, which=which, transform=self._structure, numbers=numbers, keys=plan.keys,
            out=out.arrays[self._image], status=status,
        )  # fmt: skip
        # threads write into these and read from those whether or not anybody asks for the batch
        held = [native.in_use() for native in self._native]
        self._underway[batch] = (which, numbers, plan, out, status, held)

        def finish() -> None:
            out.num_bytes = self._end(batch)
            if plan.is_cancelled():
                raise Cancelled
            self._fill_rest(plan, out, which, numbers, status)

        return finish

    def close(self) -> None:
        for batch in list(self._underway):
            self._end(batch)
        if self._pool is not None:
            self._library.pool_close(self._pool)
            self._pool = None
        for native in self._native:
            native.close()
        self._twin.close()

    def _open_pool(self) -> int:
        if self._pool is not None and self._pool_threads != self.num_threads and not self._underway:
            self._library.pool_close(self._pool)
            self._pool = None
        if self._pool is None:
            self._pool = self._library.pool_open(self.num_threads)
            self._pool_threads = self.num_threads
            if self._pool is None:
                raise MemoryError("no thread could be started")
        return self._pool

    def _end(self, batch: int) -> int:
        assert self._pool is not None
        num_bytes = self._library.end(self._pool, batch)
        del self._underway[batch]
        return num_bytes

    def _fill_rest(self, plan: BatchPlan, out: Buffers, which: Array, numbers: Array, status: Array) -> None:
        for name in out.lists:
            out.lists[name] = [None] * len(plan)
        out.num_skipped = 0
        self._fill_other_fields(plan, out, which, numbers, np.flatnonzero(status == 0))
        for row in np.flatnonzero(status).tolist():
            self._twin.fill_row(plan, out, row)

    def _fill_other_fields(self, plan: BatchPlan, out: Buffers, which: Array, numbers: Array, whole: Array) -> None:
        """Scalars from the rows that the library has verified; anything else sample by sample."""
        scalars = {field.name: column_name(field) for field in self._packs.fields if field.is_scalar}
        others = [name for name in out.arrays if name != self._image and name not in scalars]
        for name in out.arrays.keys() & scalars.keys():
            for number, pack in enumerate(self._packs.packs):
                rows = whole[which[whole] == number]
                out.arrays[name][rows] = pack.index[scalars[name]][numbers[rows]]
        if not others and not out.lists:
            return
        for row in whole.tolist():
            sample = self._packs.sample(int(plan.samples[row]))
            for name in others:
                out.arrays[name][row] = sample[name]
            for name, values in out.lists.items():
                values[row] = sample[name]
