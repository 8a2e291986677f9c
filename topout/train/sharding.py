"""A DataLoader that gives each rank its share of every global batch, and knows where it stands.

    loader = shard(loader, place)

comes back as a DataLoader with the same data set, workers, collate function and attributes. batch_size is samples a
rank, as under DDP. Position and order mean the same at any world size, so a resume may change it. Not for evaluation,
which deals out whole batches (`evaluate`), and not for streams: an iterable data set has no numbers to deal out.
"""

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset

from topout.epoch.partition import Partition
from topout.epoch.randomness import key
from topout.epoch.whole_number import whole
from topout.schema.errors import TopoutError
from topout.train.agreement import equal_everywhere, together
from topout.train.batches import Batches, EpochPlan
from topout.train.loader_position import LoaderPosition, read_position
from topout.train.place import Place
from topout.train.sample_order import is_own, length_of, order_of

BASE_SEED = 2**63 + 32
"""The position whose key seeds the workers of rank 0 when they start; rank r's is r further on."""


def shard(loader: DataLoader, place: Place, *, seed: int = 0, own_share: bool = False) -> DataLoader:
    """This rank's share of `loader`; all ranks call it together. `own_share`: the loader deals out by itself."""
    if isinstance(loader, ShardedLoader):
        return loader
    if not isinstance(loader, DataLoader):
        raise TopoutError(
            f"{type(loader).__name__} is no DataLoader.",
            why="Its samples cannot be dealt out to ranks: only a DataLoader says which ones there are.",
            do="pass a torch DataLoader, or topout.Loader, which takes this rank's share by itself",
        )
    if own_share:
        return loader
    if isinstance(loader.dataset, IterableDataset):
        if place.world_size == 1:
            return loader
        raise TopoutError(
            f"The data set {type(loader.dataset).__name__} is an iterable one.",
            why="Its samples have no numbers, so they cannot be dealt out: every rank would train on all of them.",
            do="take each rank's part in its __iter__ and pass own_share=True, or use a data set with __getitem__",
        )
    return _sharded(loader, place, whole("seed", seed, least=None))


class OwnDraws(DataLoader):  # type: ignore[misc]
    """A loader whose generator `same_but` has replaced: by one of the host, whatever torch's default device is."""

    def _get_iterator(self) -> Any:
        # torch draws a seed for workers there, also where there are none
        if torch.empty(0).device.type == "cpu":
            return super()._get_iterator()
        # forked workers keep it, and are right to: a GPU that this process uses cannot be used in them
        with torch.device("cpu"):
            return super()._get_iterator()


class ShardedLoader(OwnDraws):
    """Made by `shard`. Each iteration is the next epoch; `set_epoch` is not needed, and harmless."""

    _topout_share: "Share"

    @property
    def _index_sampler(self) -> Any:
        # the one place where torch asks what to fetch; all attributes stay as the script set them
        return self._topout_share.batches

    def __iter__(self) -> Iterator[Any]:
        share = self._topout_share
        progress = share.begin()
        # without workers a number is drawn too; the script's own sequence must not notice
        self.generator.manual_seed(key(share.now.seed, share.now.epoch, BASE_SEED + share.place.rank) >> 1)
        return EpochIterator(super().__iter__(), progress, type(self).__name__)

    @property
    def epoch(self) -> int:
        """Of the iteration under way, or of the next where none is."""
        return self._topout_share.position().epoch

    @property
    def has_begun(self) -> bool:
        """Whether a batch was taken since it was made, or told where to go on."""
        return self._topout_share.has_begun

    def set_epoch(self, epoch: int) -> None:
        """The next iteration's epoch; after `load_state_dict` of that epoch it goes on within it."""
        self._topout_share.set_epoch(whole("epoch", epoch, least=0))

    def state_dict(self) -> dict[str, Any]:
        """Where training stands: after the batch handed out last. Equal on all ranks that took equally many."""
        return self._topout_share.position().state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration goes on there, at whatever world size and batch size this loader has."""
        self._topout_share.go_to(state)


class EpochIterator:
    """One pass; counts what the loop was given, not what workers made ahead."""

    __slots__ = ("_batches", "_class_name", "_progress")

    def __init__(self, batches: Iterator[Any], progress: "Progress", class_name: str) -> None:
        self._batches = batches
        self._progress = progress
        self._class_name = class_name

    def __iter__(self) -> "EpochIterator":
        return self

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def __next__(self) -> Any:
        progress = self._progress
        try:
            batch = next(self._batches)
        except StopIteration:
            progress.is_over = True
            raise
        if not progress.num_taken:
            _check_asked(progress.plan, self._class_name)
        progress.num_taken += 1
        return batch


class Progress:
    """How far an iteration is; outlives it, since the state is asked for after the last batch too."""

    def __init__(self, plan: EpochPlan) -> None:
        self.plan = plan
        self.num_taken = 0
        self.is_over = False


class Share:
    """What one rank takes of a loader, epoch after epoch."""

    def __init__(self, loader: DataLoader, place: Place, seed: int) -> None:
        self.place = place
        self.sampler, batch_size, drop_last = index_source(loader)
        self.are_units = batch_size is None
        self.batches = Batches(lambda: len(self._partition(length_of(self.sampler))), is_seeded=loader.num_workers > 0)
        self.last = "drop" if drop_last else "even"
        self.batch_size = batch_size or 1
        self.next = LoaderPosition(seed=seed, num_positions=0)
        self.now = self.next
        self.progress: Progress | None = None

    def check(self) -> None:
        """That every rank has the same data, and that there is enough of it."""
        place, sampler = self.place, self.sampler
        if type(sampler) is DistributedSampler and sampler.num_replicas != place.world_size:
            raise TopoutError(
                f"The DistributedSampler deals out to {sampler.num_replicas}, and this world has {place.world_size}.",
                why="topout deals out in its place, to all ranks of the world.",
                do="leave the sampler out, or pass own_share=True to keep it",
            )
        num = length_of(sampler)
        if place.world_size > 1:
            _check_enough(num, self._partition(num), drop_last=self.last == "drop", are_units=self.are_units)

    def begin(self) -> Progress:
        """The next epoch; all ranks together where a sampler was run, for they must have drawn the same."""
        at = self.next
        order = together(lambda: order_of(self.sampler, at.seed, at.epoch), self.place, is_own(self.sampler))
        if order.fingerprint is not None:
            drawn = {"samples": order.num_positions, "order": order.fingerprint}
            equal_everywhere(drawn, self.place, _ORDERS_DIFFER, checksums=["order"])
        at.check_order(order)
        self.now = replace(at, num_positions=order.num_positions, fingerprint=order.fingerprint)
        self.next = replace(at, epoch=at.epoch + 1, position=0, num_positions=0, fingerprint=None)
        partition = self._partition(order.num_positions, at.position)
        _warn_of_repeats(partition)
        self.batches.plan = EpochPlan(order, partition, at.seed, at.epoch, self.are_units)
        self.progress = Progress(self.batches.plan)
        return self.progress

    @property
    def has_begun(self) -> bool:
        return self.progress is not None and (self.progress.is_over or self.progress.num_taken > 0)

    def position(self) -> LoaderPosition:
        if self.progress is None:
            return self.next if self.next.position else replace(self.next, num_positions=self._stated_length())
        if self.progress.is_over:
            length = self._stated_length()
            return replace(self.now, epoch=self.now.epoch + 1, position=0, num_positions=length, fingerprint=None)
        return replace(self.now, position=self.progress.plan.partition.position_after(self.progress.num_taken))

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.next.epoch:
            self.next = replace(self.next, epoch=epoch, position=0, num_positions=0, fingerprint=None)
        self.progress = None

    def go_to(self, state: Mapping[str, Any]) -> None:
        self.next = read_position(state, self._stated_length())
        self.progress = None

    def _stated_length(self) -> int:
        return 0 if is_own(self.sampler) else length_of(self.sampler)

    def _partition(self, num_positions: int, start: int = 0) -> Partition:
        return Partition(
            num_positions=num_positions,
            batch_size=self.batch_size,
            rank=self.place.rank,
            world_size=self.place.world_size,
            last=self.last,
            start=start,
        )


def index_source(loader: DataLoader) -> tuple[Any, int | None, bool]:
    """(sampler, batch size, drop_last); no batch size where the sampler gives whole batches, or none are made."""
    source = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    if type(source) is BatchSampler:
        return source.sampler, source.batch_size, source.drop_last
    return source, None, False


def same_but(loader: DataLoader, kind: type[OwnDraws], **changes: Any) -> Any:
    """A loader of class `kind`, whatever else its class is, with all attributes of `loader`, and workers of its own."""
    plain = loader.__dict__.get("_topout_plain", type(loader))
    combined = kind if plain is DataLoader else type(f"{kind.__name__}Of{plain.__name__}", (kind, plain), {})
    other: Any = object.__new__(combined)
    # not through its __init__, which a subclass may have changed, nor __setattr__, which refuses
    other.__dict__.update(loader.__dict__, _iterator=None, _topout_plain=plain, generator=torch.Generator(), **changes)
    return other


def _sharded(loader: DataLoader, place: Place, seed: int) -> ShardedLoader:
    def made() -> Share:
        share = Share(loader, place, seed)
        share.check()
        return share

    share = together(made, place)
    equal_everywhere(
        {
            "samples": length_of(share.sampler),
            "batch size": share.batch_size,
            "drop_last": share.last == "drop",
            "sampler": type(share.sampler).__name__,
            "seed": seed,
        },
        place,
        _LOADERS_DIFFER,
    )
    if not getattr(loader, "in_order", True):
        warnings.warn("in_order=False is set back: out of order, a position in the data means nothing.", stacklevel=3)
    sharded: ShardedLoader = same_but(loader, ShardedLoader, _topout_share=share, in_order=True)
    return sharded


_LOADERS_DIFFER = (
    "every rank deals out the same data; a rank with another view of it would skip and repeat samples",
    "give every rank the whole data set with the same settings; pass own_share=True if each rank has its own part",
)
_ORDERS_DIFFER = (
    "the sampler draws from a source that topout cannot seed, so samples would be skipped and repeated",
    "draw from torch, numpy or random, or from a `generator` attribute, seeded equally on all ranks",
)


def _check_enough(num: int, partition: Partition, *, drop_last: bool, are_units: bool) -> None:
    what = "batches" if are_units else "samples"
    if num < partition.world_size:
        raise TopoutError(
            f"{num} {what} are too few for {partition.world_size} ranks.",
            why="Some rank would have nothing to train on, and the others would wait for it.",
            do=f"at most {max(1, num)} ranks, or more data",
        )
    if drop_last and not len(partition) and num >= partition.batch_size:
        raise TopoutError(
            f"{num} {what} do not fill a batch of {partition.batch_size} on {partition.world_size} ranks.",
            why="With drop_last=True an epoch would be empty.",
            do=f"a batch size of at most {num // partition.world_size}, fewer ranks, or drop_last=False",
        )


def _check_asked(plan: EpochPlan, class_name: str) -> None:
    if not plan.was_asked:
        raise TopoutError(
            f"{class_name.removeprefix('ShardedLoaderOf')} does not ask which samples to load in each epoch.",
            why="Its __iter__ keeps an iterator of its own, so every rank would get all samples.",
            do="use torch's DataLoader; persistent_workers=True keeps workers alive between epochs",
        )


def _warn_of_repeats(partition: Partition) -> None:
    left = partition.num_left
    if partition.start and partition.last == "even" and 0 < left < partition.world_size:
        warnings.warn(
            f"{left} sample(s) of the epoch are left for {partition.world_size} ranks: some are loaded more than once.",
            stacklevel=4,
        )
