"""`topout.Loader`: batches from packs, shuffled over all samples, decoded by threads, ready before they are asked for.

    loader = topout.Loader("train.pack", 256, transform=train_images(224), device="cuda")
    for images, labels in loader: ...

One iteration is one epoch; the next begins where the epoch ended, with another order. Not for transforms written in
Python: those go with `topout.PackedDataset` into a stock DataLoader.
"""

import os
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from topout.epoch.order import BlockShuffled, Order, Sequential, order
from topout.epoch.partition import Partition, rank_and_world
from topout.epoch.whole_number import whole
from topout.feed.augment import ImageTransform, Normalize, Step, as_transform
from topout.feed.counters import FeedCounters, WaitRecord, batch_asked, batches_allowed
from topout.feed.curriculum import Curriculum, easiest_first
from topout.feed.delivery import Delivery
from topout.feed.feeding import Feeding
from topout.feed.image_fields import image_field
from topout.feed.iteration import BatchIterator, Progress
from topout.feed.kept import Kept, make_slab
from topout.feed.loader_checks import check_fits, check_options, cuda_device, warn_if_nothing_is_left
from topout.feed.mixing import Mixture
from topout.feed.pack_set import PackSet, Source
from topout.feed.pipeline import Pipeline, RecordPipeline, normalisation_table
from topout.feed.pipeline_choice import image_pipeline
from topout.feed.plans import plans
from topout.feed.position import Position, read_state
from topout.feed.prefetch import Channel
from topout.feed.slabs import SlabPool
from topout.feed.staging.following import Following
from topout.feed.staging.stager import StagingOptions
from topout.record.clock import now_ns
from topout.schema.errors import TopoutError


class Loader:
    """Batches of one rank: (images, labels) of packs of just these, with a transform; else a dict by field.

    `batch_size` is this rank's. `transform` is a list of steps of `topout.feed.augment`; without one images come as
    their bytes. `dtype` is uint8, float32 or bfloat16. `device` brings batches there ahead of use. `weights` mix
    several packs; without them they are shuffled as one. `prefetch` bounds the batches ready and in the making.
    `curriculum` names a column to sort by, over `pace` epochs.
    `block_shards` shuffles within so many shards at a time. `decode` is auto, host or device. `stage` brings packs of
    slow folders near ahead of use; those behind an address (`s3://`, `https://`) always are.
    """

    def __init__(
        self,
        packs: Source | Sequence[Source],
        batch_size: int,
        *,
        transform: ImageTransform | Step | Sequence[Any] | None = None,
        seed: int = 0,
        shuffle: bool = True,
        rank: int | None = None,
        world_size: int | None = None,
        last: str = "drop",
        dtype: str = "float32",
        channels_last: bool = True,
        device: Any = None,
        num_threads: int | None = None,
        prefetch: int = 3,
        weights: Sequence[float] | None = None,
        curriculum: str | None = None,
        pace: float = 5.0,
        block_shards: int | None = None,
        on_damage: str = "stop",
        image: str | None = None,
        decode: str = "auto",
        stage: bool | StagingOptions = False,
    ) -> None:
        self._device = cuda_device(device)
        check_options(
            dtype=dtype, on_damage=on_damage, decode=decode, stage=stage, device=self._device,
            orders={"weights": weights, "curriculum": curriculum, "block_shards": block_shards}, shuffle=shuffle,
        )  # fmt: skip
        # all of this before a pack is opened, which may be far away
        seed, batch_size = whole("seed", seed, least=None), whole("batch_size", batch_size)
        self._prefetch = whole("prefetch", prefetch)
        self.num_threads = default_threads() if num_threads is None else whole("num_threads", num_threads)
        self._block_shards = None if block_shards is None else whole("block_shards", block_shards)
        own_rank, own_world = rank_and_world(os.environ, rank, world_size)
        self.transform = None if transform is None else as_transform(transform)
        self.packs = PackSet(packs, on_damage, is_staged=bool(stage))
        self._shuffle, self._weights, self._pace = shuffle, weights, pace
        self._ranking = easiest_first(self.packs.column(curriculum)) if curriculum is not None else None
        self._image = image_field(self.packs.fields, self.transform, image)
        self._dtype, self._is_channels_last = dtype, channels_last
        self._threads_given = num_threads is not None
        self._skips_damage, self._decode = on_damage == "skip", decode
        self._next = Position(seed=seed, data=self.packs.identities)
        self._now: tuple[Position, Partition, Progress] | None = None
        self._partition = Partition(
            num_positions=self._order(self._next).num_positions,
            batch_size=batch_asked(batch_size, shuffle=shuffle),
            rank=own_rank,
            world_size=own_world,
            last=last,
        )
        check_fits(self._partition, self.packs, self.transform, dtype)
        self._counters = FeedCounters()
        self._following = self._staging(stage, f"{seed}-{shuffle}-{weights}-{curriculum}-{pace}-{block_shards}")
        self._kept: Kept | None = None
        self._is_closed = False
        self._iterators: list[weakref.ref[BatchIterator]] = []

    def __len__(self) -> int:
        """Batches of a whole epoch on this rank, also where a resume goes on within one: schedules count on it."""
        return batches_allowed(len(self._partition))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> BatchIterator:
        if self._is_closed:
            raise TopoutError("This loader was closed.", why="Its packs are no longer open.", do="make another one")
        start_ns = now_ns()
        at, progress = self._next, Progress()
        partition = replace(self._partition, start=at.position)
        warn_if_nothing_is_left(at, partition)
        self._now = (at, partition, progress)
        self._next = replace(at, epoch=at.epoch + 1, position=0)
        self._following.begin(at.epoch, partition)
        channel = Channel(self._prefetch)
        feeding = self._feeding(at, partition, channel)
        threads = feeding.pipeline.num_threads
        waits = WaitRecord(self._counters, partition.batch_size, threads, shuffle=self._shuffle)
        iterator = BatchIterator(
            feeding.batches, feeding.finish, channel=channel, progress=progress, pool=feeding.kept.pool, waits=waits,
            after_batch=feeding.heard, cools=feeding.kept.pool.cools, passed=self._passed,
        )  # fmt: skip
        # no WeakSet, which runs Python when an iterator dies: a Ctrl-C would be lost there
        self._iterators = [reference for reference in self._iterators if reference() is not None]
        self._iterators.append(weakref.ref(iterator))
        waits.started(start_ns)
        return iterator

    @property
    def epoch(self) -> int:
        """Of the iteration under way, or of the next where none is."""
        return self._position().epoch

    @property
    def world_size(self) -> int:
        """Ranks that share an epoch."""
        return self._partition.world_size

    @property
    def classes(self) -> tuple[str, ...] | None:
        return self.packs.classes

    def set_epoch(self, epoch: int) -> None:
        """The next iteration's epoch. Not needed in plain loops, and harmless after `load_state_dict` of that epoch."""
        epoch = whole("epoch", epoch, least=0)
        if epoch != self._next.epoch:
            self._next = replace(self._next, epoch=epoch, position=0)
        self._now = None

    def state_dict(self) -> dict[str, Any]:
        """Where training stands: after the batch handed out last. Equal on all ranks that took equally many."""
        return self._position().state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration goes on there, at whatever world size and batch size this loader has."""
        self._next = read_state(state, self.packs.identities, self._partition.num_positions)
        self._now = None

    def counters(self) -> dict[str, int]:
        """Totals so far: samples, batches, bytes, skipped, wait_ns; and the batches ready now."""
        return self._counters.totals()

    def close(self) -> None:
        """Ends all iterations and their threads, and closes the packs that this loader opened."""
        self._is_closed = True
        for reference in self._iterators:
            iterator = reference()
            if iterator is not None:
                iterator.close()
        self._following.close()
        self.packs.close()

    def _staging(self, stage: bool | StagingOptions, name: str) -> Following:
        """Ranks of one host stage together where the name, which tells one order from another, is the same."""
        return Following(
            self.packs.packs,
            None if isinstance(stage, bool) else stage,
            order_of=lambda epoch: self._order(replace(self._next, epoch=epoch, position=0)),
            name=name,
            batches_at_once=self._prefetch + 1,
        )

    def _keep(self, delivery: Delivery) -> Kept:
        if self._kept is None:
            is_pinned = _has_cuda()
            fields, batch_size = self.packs.fields, self._partition.batch_size
            # a device copies in order, and slabs there carry their own fence
            pool = SlabPool(
                lambda: make_slab(fields, delivery, batch_size, is_pinned=is_pinned),
                cools=is_pinned and delivery.device is None,
            )
            self._kept = Kept(pool=pool)
        return self._kept

    def _passed(self) -> None:
        at = self._position()
        self._following.passed(at.epoch, at.position)

    def _position(self) -> Position:
        if self._now is None:
            return self._next
        at, partition, progress = self._now
        if progress.is_over:
            return replace(at, epoch=at.epoch + 1, position=0)
        return replace(at, position=partition.position_after(progress.num_taken))

    def _order(self, at: Position) -> Order:
        num_samples, seed, epoch = len(self.packs), at.seed, at.epoch
        if self._weights is not None:
            return Mixture(seed=seed, epoch=epoch, sizes=self.packs.sizes, weights=self._weights)
        if self._ranking is not None:
            return Curriculum(seed=seed, epoch=epoch, ranking=self._ranking, pace=self._pace)
        if not self._shuffle:
            return Sequential(num_positions=num_samples)
        if self._block_shards is not None:
            return BlockShuffled(seed=seed, epoch=epoch, starts=self.packs.shard_starts(), window=self._block_shards)
        return order(seed, epoch, num_samples)

    def _feeding(self, at: Position, partition: Partition, channel: Channel) -> Feeding:
        delivery = self._delivery()
        tunes = delivery.device is not None and self._image is not None
        wants_device = tunes and self._decode != "host"
        return Feeding(
            packs=self.packs,
            delivery=delivery,
            pipeline=self._pipeline(delivery),
            plans=plans(
                self._order(at),
                partition,
                seed=at.seed,
                epoch=at.epoch,
                num_batches=batches_allowed(len(partition)),
                is_cancelled=lambda: channel.is_closed,
            ),
            channel=channel,
            kept=self._keep(delivery),
            skips_damage=self._skips_damage,
            may_tune_threads=tunes and not self._threads_given and self._decode != "device",
            may_decode_on_device=wants_device and self._decode == "auto" and _decodes_on_device(),
            must_decode_on_device=wants_device and self._decode == "device",
        )

    def _delivery(self) -> Delivery:
        device = self._device
        stream = None
        if device is not None:
            import torch

            device = device if device.index is not None else torch.device("cuda", torch.cuda.current_device())
            stream = torch.cuda.Stream(device)
        return Delivery(
            image=self._image,
            transform=self.transform,
            dtype=self._dtype,
            is_channels_last=self._is_channels_last,
            device=device,
            stream=stream,
            is_pair={field.name for field in self.packs.fields} == {self._image, "label"},
        )

    def _pipeline(self, delivery: Delivery) -> Pipeline:
        if self._image is None or self.transform is None:
            return RecordPipeline(self.packs, skips_damage=self._skips_damage)
        finishes_later = delivery.finishes_in_torch
        table = None if finishes_later else normalisation_table(self.transform.step(Normalize), self._dtype)
        return image_pipeline(
            self.packs,
            self._image,
            self.transform,
            num_threads=self.num_threads,
            is_channels_last=self._is_channels_last,
            table=table,
            skips_damage=self._skips_damage,
        )


def default_threads() -> int:
    """The cores this process may use, shared with the ranks beside it where nobody has divided them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    is_whole_host = cores == os.cpu_count()
    try:
        num_local = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if is_whole_host else 1
    except ValueError:
        num_local = 1
    return max(1, cores // max(1, num_local))


def _has_cuda() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def _decodes_on_device() -> bool:
    from topout.feed import device_decode

    return device_decode.is_available()
