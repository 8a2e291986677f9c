"""From a list of positions to the arrays of a batch: what a pipeline is, and the one written in Python.

The native pipeline does the same in C; this one is its twin and its fallback, threads over Pillow. Which samples come
and how they are cropped is decided by the plan, so both give the same batches.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from topout.epoch.order import Int64s, Order
from topout.epoch.randomness import Uint64s
from topout.feed.augment import ImageTransform, Normalize, RandomCrop
from topout.feed.crop import place
from topout.feed.decode import UnreadableImage, open_rgb, render
from topout.feed.pack_set import PackSet
from topout.packs.damage import DamagedSample
from topout.packs.fields import Field, Sample
from topout.schema.errors import TopoutError

Array = np.ndarray[Any, Any]
MOST_REPLACEMENTS = 1_000
"""Damaged samples in a row after which skipping gives up: then it is the pack that is lost, not a sample."""


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """Which samples a batch holds, and the keys of their random numbers."""

    number: int
    """From 0 in this iteration."""
    positions: Int64s
    samples: Int64s
    keys: Uint64s
    order: Order
    is_cancelled: Callable[[], bool] = lambda: False
    """Asked between samples: nobody wants the batch any more."""

    def __len__(self) -> int:
        return len(self.positions)


@dataclass(kw_only=True)
class Buffers:
    """What a pipeline fills. `arrays` have a row a sample; values of varying size go into `lists`."""

    arrays: dict[str, Array] = field(default_factory=dict)
    lists: dict[str, list[Any]] = field(default_factory=dict)
    num_bytes: int = 0
    """Read from packs for this batch."""
    num_skipped: int = 0
    """Damaged samples that others took the place of."""


class Pipeline(Protocol):
    """Made for one iteration, closed after it."""

    num_threads: int
    """May be changed between batches."""

    def run(self, plan: BatchPlan, out: Buffers) -> None: ...

    def start(self, plan: BatchPlan, out: Buffers) -> Callable[[], None]:
        """Begins a batch behind those under way, so that no thread idles at a batch's end; the result finishes it."""

    def close(self) -> None: ...


class Cancelled(Exception):  # noqa: N818 (no error: nobody waits for the batch)
    """The plan was cancelled while a pipeline ran it."""


def images_layout(array: Array, *, is_channels_last: bool) -> Array:
    """A view of an image array with channels last, (batch, height, width, channels), whichever way it lies."""
    return array if is_channels_last else array.transpose(0, 2, 3, 1)


class ImagePipeline:
    """Decodes, crops, resizes, flips and normalises one image field; other fields come as they are.

    `table` maps each value 0 to 255 of each channel to what the batch holds, which makes normalisation a look-up; None
    leaves bytes.
    """

    def __init__(
        self,
        packs: PackSet,
        image: str,
        transform: ImageTransform,
        *,
        num_threads: int,
        is_channels_last: bool = True,
        table: Array | None = None,
        skips_damage: bool = False,
    ) -> None:
        self.num_threads = num_threads
        self.packs = packs
        self.image = image
        self.transform = transform
        self.is_channels_last = is_channels_last
        self.table = table
        self._skips_damage = skips_damage
        self._pool: ThreadPoolExecutor | None = None
        self._pool_threads = 0
        self._lock = threading.Lock()

    def run(self, plan: BatchPlan, out: Buffers) -> None:
        self.start(plan, out)()

    def start(self, plan: BatchPlan, out: Buffers) -> Callable[[], None]:
        for name in out.lists:
            out.lists[name] = [None] * len(plan)
        out.num_bytes = out.num_skipped = 0
        pool = self._threads()
        work: list[Future[None]] = [pool.submit(self.fill_row, plan, out, row) for row in range(len(plan))]

        def finish() -> None:
            try:
                for one in work:
                    one.result()
            except BaseException:
                for one in work:
                    one.cancel()
                raise

        return finish

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None or self._pool_threads != self.num_threads:
            self.close()
            self._pool = ThreadPoolExecutor(self.num_threads, thread_name_prefix="topout-decode")
            self._pool_threads = self.num_threads
        return self._pool

    def fill_row(self, plan: BatchPlan, out: Buffers, row: int) -> None:
        """One sample, in the calling thread."""
        if plan.is_cancelled():
            raise Cancelled
        key = int(plan.keys[row])

        def read(number: int) -> tuple[Sample, Array]:
            sample = self.packs.sample(number)
            return sample, self._rendered(sample[self.image], number, key)

        (sample, pixels), num_skipped = read_or_replace(plan, row, read, skips=self._skips_damage)
        target = images_layout(out.arrays[self.image], is_channels_last=self.is_channels_last)[row]
        if self.table is None:
            target[...] = pixels
        else:
            for channel in range(3):
                target[..., channel] = self.table[channel][pixels[..., channel]]
        for name, array in out.arrays.items():
            if name != self.image:
                array[row] = sample[name]
        for name, values in out.lists.items():
            values[row] = sample[name]
        with self._lock:
            out.num_bytes += len(sample[self.image])
            out.num_skipped += num_skipped

    def _rendered(self, data: bytes, number: int, key: int) -> Array:
        image = open_rgb(data, self.packs.name(number), self.packs.find(number)[0].path)
        height, width = self.transform.size
        crop = self.transform.step(RandomCrop)
        window = place(self.transform, image.width, image.height, key)
        return render(image, window, height, width, crop.fill if crop else 0)


class RecordPipeline:
    """Fixed arrays and numbers with one gather a batch; fields of varying size sample by sample, into lists."""

    def __init__(self, packs: PackSet, *, skips_damage: bool = False) -> None:
        self.num_threads = 1
        self._packs = packs
        self._skips_damage = skips_damage
        self._gathered = [one for one in packs.fields if not one.is_variable]
        self._variable = [one for one in packs.fields if one.is_variable]

    def run(self, plan: BatchPlan, out: Buffers) -> None:
        out.num_bytes = out.num_skipped = 0
        samples = plan.samples
        if self._variable:
            read = [read_or_replace(plan, row, self._numbered, skips=self._skips_damage) for row in range(len(plan))]
            out.num_skipped = sum(num_skipped for _, num_skipped in read)
            for one in self._variable:
                out.lists[one.name] = [sample[one.name] for (_, sample), _ in read]
                out.num_bytes += sum(_size(value) for value in out.lists[one.name])
            for one in self._gathered:
                out.arrays[one.name] = _stacked(one, [sample[one.name] for (_, sample), _ in read])
        else:
            try:
                out.arrays = self._gather(samples)
            except DamagedSample:
                if not self._skips_damage:
                    raise
                read = [read_or_replace(plan, row, self._numbered, skips=True) for row in range(len(plan))]
                out.num_skipped = sum(num_skipped for _, num_skipped in read)
                out.arrays = self._gather(np.array([number for (number, _), _ in read], dtype=np.int64))
        out.num_bytes += sum(array.nbytes for array in out.arrays.values())

    def start(self, plan: BatchPlan, out: Buffers) -> Callable[[], None]:
        return lambda: self.run(plan, out)

    def close(self) -> None:
        """Holds nothing."""

    def _gather(self, samples: Int64s) -> dict[str, Array]:
        return self._packs.gather(samples, [one.name for one in self._gathered])

    def _numbered(self, number: int) -> tuple[int, Sample]:
        return number, self._packs.sample(number)


def read_or_replace(plan: BatchPlan, row: int, read: Callable[[int], Any], *, skips: bool) -> tuple[Any, int]:
    """What `read` makes of a row's sample; where that is damaged and `skips`, of the next position's that is not.

    The random numbers stay those of the row's own position. Also says how many samples were passed over.
    """
    try:
        return read(int(plan.samples[row])), 0
    except (DamagedSample, UnreadableImage) as damaged:
        if not skips:
            raise
        num_positions = plan.order.num_positions
        for step in range(1, min(MOST_REPLACEMENTS, num_positions)):
            position = (int(plan.positions[row]) + step) % num_positions
            try:
                return read(int(plan.order.at(np.array([position]))[0])), step
            except (DamagedSample, UnreadableImage):
                continue
        raise TopoutError(
            "No sample could be read in place of a damaged one.",
            why=f"{min(MOST_REPLACEMENTS, num_positions)} in a row are damaged. The first: {damaged.problem}",
            do="topout data check PACK --repair",
        ) from damaged


def normalisation_table(normalize: Normalize | None, dtype: str) -> Array | None:
    """(3, 256) values for a batch of `dtype`; None for uint8. bfloat16 comes as its bits, rounded to nearest even."""
    if dtype == "uint8":
        return None
    values = np.tile(np.arange(256, dtype=np.float32) / np.float32(255), (3, 1))
    if normalize is not None:
        mean, std = (np.array(part, dtype=np.float32)[:, None] for part in (normalize.mean, normalize.std))
        values = (values - mean) / std
    if dtype == "float32":
        return values
    bits = values.view(np.uint32).astype(np.uint64)
    return ((bits + np.uint64(0x7FFF) + (bits >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)).astype(np.uint16)


def _stacked(one: Field, values: list[Any]) -> Array:
    return np.stack(values) if one.is_fixed else np.array(values, dtype=np.int64 if one.kind == "int" else np.float64)


def _size(value: Any) -> int:
    return int(value.nbytes) if isinstance(value, np.ndarray) else len(value) if isinstance(value, (bytes, str)) else 0
