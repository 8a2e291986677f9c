"""The batches of one process, dealt out whole: rank r takes r, r + world_size, ... of them.

A batch is then made of the same samples at any world size, so that what is computed of it is the same bit for bit.
Ranks may have a batch less than others, or none. Not for training, where all must have equally many.
"""

import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from topout.epoch.partition import Partition
from topout.epoch.randomness import G, finalise_one, key
from topout.packs.checksum import crc32c
from topout.schema.errors import TopoutError
from topout.train.agreement import equal_everywhere, raise_together, together
from topout.train.batches import WORKER, Seeded
from topout.train.exchange import gather
from topout.train.place import Place
from topout.train.sample_order import SampleOrder, order_of
from topout.train.sharding import OwnDraws, index_source, same_but

Numbered = Generator[tuple[int | None, Any], None, None]
"""A batch's number in the order of one process, None where its result is not wanted; and the batch."""

_with_workers: "weakref.WeakKeyDictionary[Any, Any]" = weakref.WeakKeyDictionary()
"""Loaders that keep their workers are kept, too, as long as what they were made of."""

_LOADERS_DIFFER = (
    "each rank takes some batches of the same data; with another view of it samples would be missed or counted twice",
    "give every rank the whole data set with the same settings; pass own_share=True if each rank has its own part",
)
_ITERABLES_DIFFER = (
    "all ranks go through the whole iterable and take some of its batches, so it must be the same everywhere",
    "pass own_share=True if it gives each rank its own part, as topout.Loader does with last='exact'",
)


def dealt(loader: Iterable[Any], place: Place, *, own_share: bool, in_step: bool) -> Numbered:
    """This rank's batches. `in_step`: ranks with one less get one that does not count, for models that meet in forward.

    What went wrong with a batch can be thrown into it: in step, and not of a DataLoader, whose ranks do not ask each
    other before a batch, the others then hear of it at their next one.
    """
    if isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset) and not own_share:
        return _of_loader(loader, place, in_step)
    batches = _own(loader, place) if own_share else _of_iterable(loader, place, in_step)
    return _in_step(batches, place) if in_step else batches


def _own(loader: Iterable[Any], place: Place) -> Numbered:
    for turn, batch in enumerate(loader):
        yield turn * place.world_size + place.rank, batch


def _of_iterable(iterable: Iterable[Any], place: Place, in_step: bool) -> Numbered:
    """Every rank loads everything and uses its part: right, and no quicker to load than one process."""

    def begun() -> tuple[Any, Iterator[Any]]:
        batches = iter(iterable)
        return next(batches, None), batches

    first, batches = together(begun, place)
    equal_everywhere({"first batch": _print_of(first)}, place, _ITERABLES_DIFFER, checksums=["first batch"])
    if first is None:
        return
    if place.is_first:
        yield 0, first
    number = 0
    for number, batch in enumerate(batches, start=1):
        if number % place.world_size == place.rank:
            yield number, batch
    if in_step and number < place.rank:
        yield None, first


def _in_step(batches: Numbered, place: Place) -> Numbered:
    """As many on all ranks, which ask each other before each one; who has none left repeats its last, uncounted."""
    last: tuple[int | None, Any] | None = None
    failure: Exception | None = None
    while True:
        found = None
        try:
            found = next(batches, None) if failure is None else None
        except Exception as error:
            failure = error
        last = found or last
        has = "failed" if failure is not None else "one" if found else "last" if last else "none"
        ranks = gather(has, place)
        if "failed" in ranks:
            raise_together(failure, place)
        if "one" not in ranks:
            return
        if last is None or "none" in ranks:
            raise _without_batch(ranks.index("none"))
        try:
            yield found or (None, last[1])
        except Exception as error:
            failure = error


def _without_batch(rank: int) -> TopoutError:
    return TopoutError(
        f"Rank {rank} has no batch, and others have.",
        why="The model gathers its parameters from all ranks in forward, so each needs a batch to run it on.",
        do="make batches smaller, so that every rank has one; or pass all data to all ranks, without own_share=True",
    )


def _of_loader(loader: DataLoader, place: Place, in_step: bool) -> Numbered:
    share: EvaluationLoader | None = _with_workers.get(loader)
    if share is None:
        share = same_but(loader, EvaluationLoader, in_order=True)
    if loader.persistent_workers:
        _with_workers[loader] = share
    batches = together(lambda: WholeBatches(loader, place, in_step), place)
    equal_everywhere(batches.facts, place, _LOADERS_DIFFER, checksums=["order"])
    # kept workers were told of the first sampler, which therefore stays and looks at the newest
    share._index_sampler.now = batches
    share.generator.manual_seed(key(0, 0, 2**63) >> 1)
    for turn, batch in enumerate(share):
        if not batches.was_asked:
            raise TopoutError(
                f"{type(loader).__name__} does not ask which samples to load.",
                why="Its __iter__ keeps an iterator of its own, so every rank would get all samples.",
                do="use torch's DataLoader; persistent_workers=True keeps workers alive between epochs",
            )
        yield batches.number(turn), batch


class EvaluationLoader(OwnDraws):
    """A loader of the same settings that fetches this rank's batches."""

    @property
    def _index_sampler(self) -> Any:
        return self.__dict__.setdefault("_topout_batches", Latest())


class Latest:
    """The sampler of a loader whose batches are another list each time."""

    now: "WholeBatches"

    def __len__(self) -> int:
        return len(self.now)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.now)


class WholeBatches:
    """Which batches of a loader's data one rank evaluates."""

    def __init__(self, loader: DataLoader, place: Place, in_step: bool) -> None:
        sampler, batch_size, drop_last = index_source(loader)
        self._order: SampleOrder = order_of(sampler, 0, 0)
        self._are_units = batch_size is None
        self._partition = Partition(
            num_positions=self._order.num_positions, batch_size=batch_size or 1, last="drop" if drop_last else "exact"
        )
        self._is_seeded = loader.num_workers > 0
        total = len(self._partition)
        self._numbers = list(range(place.rank, total, place.world_size))
        self._num_wanted = len(self._numbers)
        if in_step and len(self._numbers) < -(-total // place.world_size):
            self._numbers.append(0)
        self.was_asked = False

    @property
    def facts(self) -> dict[str, Any]:
        partition = self._partition
        return {
            "samples": partition.num_positions,
            "batch size": partition.batch_size,
            "batches": len(partition),
            "order": self._order.fingerprint,
        }

    def number(self, turn: int) -> int | None:
        return self._numbers[turn] if turn < self._num_wanted else None

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[Any]:
        self.was_asked = True
        for number in self._numbers:
            samples = self._order.at(self._partition.batch(number))
            wanted = samples[0] if self._are_units else samples
            # by the batch's number: what workers draw is then the same at any world size
            yield Seeded(wanted, finalise_one(key(0, 0, number) + WORKER * G)) if self._is_seeded else wanted


def _print_of(batch: Any) -> int:
    """A checksum of the tensors and plain values in a batch."""
    return _continued(batch, 0)


def _continued(value: Any, so_far: int) -> int:
    extend: Callable[[bytes, int], int] = crc32c
    if isinstance(value, torch.Tensor):
        return extend(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes(), so_far)
    if hasattr(value, "tobytes"):
        return extend(value.tobytes(), so_far)
    if isinstance(value, dict):
        value = [part for pair in value.items() for part in pair]
    if isinstance(value, (list, tuple)):
        for part in value:
            so_far = _continued(part, so_far)
        return so_far
    return extend(repr(value).encode(), so_far) if isinstance(value, (int, float, str, bytes, type(None))) else so_far
