"""Which loaders feed training, and each rank's share of those.

A loader feeds training where gradients are wanted, the model is not in evaluation mode, and it shuffles, or the script
has called `train()`. Both mistakes are found before they matter: a backward pass on a batch of a whole loader, and a
sharded loader that none followed before something else began.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, SequentialSampler

from topout.schema.errors import TopoutError
from topout.train.parallelise import same_samples
from topout.train.parallelise.lines import script_line
from topout.train.parallelise.session import Session
from topout.train.sharding import ShardedLoader

_TWIN, _LINE, _WAS_SHARDED = "_topout_ddp_twin", "_topout_ddp_line", "_topout_ddp_was_sharded"
_TOLD = "_topout_ddp_told"
"""Lengths that the script was told before the loader was first gone through, and at which lines."""


def install(session: Session) -> None:
    _note_lines()
    _share_out(session)
    _shorten(session)


def _note_lines() -> None:
    original = DataLoader.__init__

    @functools.wraps(original)
    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        self.__dict__[_LINE] = script_line()
        original(self, *args, **kwargs)

    DataLoader.__init__ = initialise


def _share_out(session: Session) -> None:
    original = DataLoader.__iter__

    @functools.wraps(original)
    def iterate(self: Any) -> Any:
        if not session.is_on or isinstance(self, ShardedLoader):
            return original(self)
        session.refuse_untrained()
        line = self.__dict__.get(_LINE, script_line())
        self.__dict__[_WAS_SHARDED] = is_training(self, session)
        told = self.__dict__.pop(_TOLD, {})
        if not self.__dict__[_WAS_SHARDED]:
            if told:
                _tell_of_length(told, len(self), session, line)
            return _Whole(functools.partial(original, self), session, line)
        twin = _twin(self, session)
        _check_length(told, len(twin), line)
        session.begin_training()
        session.sharded_line = f"DataLoader at {line} sharded ({_size(self, session)})"
        return _Sharded(iter(twin), session, line)

    DataLoader.__iter__ = iterate


def _shorten(session: Session) -> None:
    """A schedule is often made from `len(loader)` before the first batch, and a mean over it after the last."""
    original = DataLoader.__len__

    @functools.wraps(original)
    def length(self: Any) -> int:
        if not session.is_on or isinstance(self, ShardedLoader):
            return int(original(self))
        is_sharded = self.__dict__.get(_WAS_SHARDED, is_training(self, session))
        found = int(original(_twin(self, session) if is_sharded else self))
        if _WAS_SHARDED not in self.__dict__:
            self.__dict__.setdefault(_TOLD, {}).setdefault(found, script_line())
        return found

    DataLoader.__len__ = length


def _check_length(told: dict[int, str], length: int, line: str) -> None:
    """A schedule over a length that is no more true would end after a part of its steps."""
    for other, at in told.items():
        if other != length:
            raise TopoutError(
                f"len() of the DataLoader at {line} was {other} at {at}, and dealt out to ranks it is {length}.",
                why="it does not shuffle and model.train() had not been called, so it was taken for one of evaluation; "
                "a learning-rate schedule over that length would not come to its end",
                do="shuffle=True, or model.train() before len() is asked for",
            )


def _tell_of_length(told: dict[int, str], length: int, session: Session, line: str) -> None:
    """No error: what is told of a training loader is right, also where the script evaluates on it first."""
    for other, at in told.items():
        if other != length:
            session.tell(
                f"topout: len() of the DataLoader at {line} was {other} at {at}, its steps if dealt out to ranks; "
                f"evaluation goes through all {length}: a mean over it must ask again"
            )


def is_training(loader: Any, session: Session) -> bool:
    if isinstance(loader.dataset, IterableDataset) or not torch.is_grad_enabled() or session.is_evaluating:
        return False
    source = loader.sampler if loader.batch_sampler is None else getattr(loader.batch_sampler, "sampler", None)
    return session.has_called_train or not isinstance(source, SequentialSampler)


def _twin(loader: Any, session: Session) -> Any:
    """Past `DataLoader.__setattr__`, which refuses what it does not know."""
    held = loader.__dict__.get(_TWIN, _Held())
    if held.twin is None:
        _check_same_samples(loader, session)
        place = session.place()
        held.twin = session.dealing.shard(_iterated_plainly(loader), place, seed=session.seed)
        loader.__dict__[_TWIN] = held
    return held.twin


class _Held:
    """Left behind where a loader is pickled: spawned workers are given one whose method collates."""

    twin: Any = None

    def __reduce__(self) -> Any:
        return _Held, ()


def _iterated_plainly(loader: Any) -> Any:
    """What the `__iter__` of its class does to batches happens outside of the twin, and would happen twice."""
    kind = type(loader)
    if kind.__iter__ is DataLoader.__iter__:
        return loader
    plain: Any = object.__new__(type(kind.__name__, (kind,), {"__iter__": DataLoader.__iter__}))
    plain.__dict__.update(loader.__dict__)
    return plain


def _check_same_samples(loader: Any, session: Session) -> None:
    """Other ones where chance had a hand that ranks do not share: of torch's numbers, after the first batch."""
    mine = same_samples.fingerprint(loader.dataset, has_begun=session.has_begun)
    other = session.first_that_differs(mine)
    if other is not None:
        raise TopoutError(
            f"The data set of the DataLoader at {loader.__dict__.get(_LINE)} has other samples on rank {other}.",
            why="it was split or shuffled by chance: after training had begun each rank has random numbers of its own, "
            "and numbers that nobody seeded are other ones on each",
            do="seed what splits: random_split(…, generator=torch.Generator().manual_seed(0)), default_rng(0)",
        )


def _size(loader: Any, session: Session) -> str:
    world_size = session.place().world_size
    batch = f", {world_size} x {loader.batch_size} a step" if loader.batch_size else ""
    return f"{len(loader.dataset):,} samples{batch}"


class _Watched:
    """Hands on what another iterator gives."""

    def __init__(self, session: Session, line: str) -> None:
        self._session = session
        self._line = line
        self._batches: Any = None

    def __iter__(self) -> Any:
        return self

    def __len__(self) -> int:
        return len(self._batches)


class _Sharded(_Watched):
    """A rank's share; once it has ended a backward pass must have happened, or must follow where it was read ahead."""

    def __init__(self, batches: Any, session: Session, line: str) -> None:
        super().__init__(session, line)
        self._batches = batches
        self._passes_before = session.num_passes

    def __next__(self) -> Any:
        self._session.whole.clear()
        self._session.draws.end_all()
        try:
            batch = next(self._batches)
        except StopIteration:
            if self._session.num_passes == self._passes_before:
                self._session.untrained = (self._line, script_line())
            raise
        if self._session.num_passes == 0:
            self._session.num_unused += 1
            self._session.unused = (self._line, script_line())
        return batch


class _Whole(_Watched):
    """Everything on every rank, for evaluation; while one of its batches is at hand, no backward pass may come."""

    def __init__(self, begin: Callable[[], Any], session: Session, line: str) -> None:
        super().__init__(session, line)
        self._is_of_evaluation = session.is_evaluating or not torch.is_grad_enabled()
        self._loop = session.draws.next_loop()
        self._num_taken = 0
        session.draw_alike(id(self), loop=self._loop, num_taken=0)
        self._batches = begin()

    def __next__(self) -> Any:
        # until the next one, for what the model draws too
        self._session.draw_alike(id(self), loop=self._loop, num_taken=self._num_taken)
        self._num_taken += 1
        try:
            batch = next(self._batches)
        except StopIteration:
            self._session.whole.pop(id(self), None)
            self._session.draws.end(id(self))
            raise
        self._session.whole[id(self)] = (self._line, self._is_of_evaluation)
        return batch

    def __del__(self) -> None:
        """An evaluation may leave it before its end; of any other its batch is still there, `next(iter(loader))`."""
        self._session.draws.end(id(self))
        if self._is_of_evaluation:
            self._session.whole.pop(id(self), None)
