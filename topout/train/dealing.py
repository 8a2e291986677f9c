"""Loaders that are dealt out one after another: each has a seed of its own, and the first has the one that was given.

An order, and what workers draw, is a function of the seed. Of one seed, two loaders over equally many samples would
give each sample together with itself, and a loader made anew for each epoch the first epoch for ever. Loaders that a
script keeps in step, by generators of one seed or by DistributedSamplers, stay in step. Not for `topout.Loader`, whose
seed is the script's.
"""

import sys
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler

from topout.epoch.randomness import key
from topout.train.place import Place
from topout.train.sharding import ShardedLoader, index_source, shard

DEALT = "@loaders"
"""The entry of a checkpoint; no entry of a user begins like this."""
LOADER = 2**63 + 48
"""The position whose key is the seed of a further loader."""


def seed_of(seed: int, number: int) -> int:
    """Of loader `number`, from 0 on; fits whatever holds a seed."""
    return seed if number == 0 else key(seed, number, LOADER) >> 2


class Dealing:
    """All ranks deal out alike, and compare the seed of each loader when they do."""

    def __init__(self) -> None:
        self.num_dealt = 0
        self._latest: list[weakref.ref[ShardedLoader]] = []
        """Of which no batch was taken when one was dealt out last."""

    def shard(self, loader: Any, place: Place, *, seed: int, own_share: bool = False) -> DataLoader:
        """As `sharding.shard`; only what that deals out counts."""
        self._latest = [one for one in self._latest if (other := one()) is not None and not other.has_begun]
        other = self._in_step_with(loader)
        own_seed = seed_of(seed, self.num_dealt) if other is None else other.state_dict()["seed"]
        sharded = shard(loader, place, seed=own_seed, own_share=own_share)
        if isinstance(sharded, ShardedLoader) and sharded is not loader:
            self.num_dealt += 1
            self._latest.append(weakref.ref(sharded))
        return sharded

    def _in_step_with(self, loader: Any) -> ShardedLoader | None:
        """The one whose order torch would give this one, too, in a script that draws nothing between them."""
        if not isinstance(loader, DataLoader):
            return None
        others = [other for one in self._latest if (other := one()) is not None]
        return next((other for other in others if _draw_alike(loader, other)), None)


class DealtLoaders:
    """How many there were, as a part of checkpoints: a resumed run does not begin again with the first one's order."""

    def __init__(self, dealing: Dealing, place: Place) -> None:
        self._dealing = dealing
        self._is_to_tell = place.is_first
        self._num_known = dealing.num_dealt

    def state_dict(self) -> dict[str, int]:
        """Asked for at each save, and the first one without some loader's position is the moment to say so."""
        if self._is_to_tell and self._dealing.num_dealt > self._num_known:
            self._is_to_tell = False
            print(  # noqa: T201  (to whoever runs the training)
                "topout: a loader was wrapped after ctx.checkpoint and is not in its checkpoints: a resume begins that "
                "loader's epoch anew, in another order. Wrap it before, and once for all epochs",
                file=sys.stderr,
            )
        return {"num_dealt": self._dealing.num_dealt}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self._dealing.num_dealt = self._num_known = max(self._dealing.num_dealt, state["num_dealt"])


def _draw_alike(loader: DataLoader, other: DataLoader) -> bool:
    (mine, *_), (theirs, *_) = index_source(loader), index_source(other)
    if type(mine) is DistributedSampler and type(theirs) is DistributedSampler:
        return bool(mine.seed == theirs.seed)
    one, another = getattr(mine, "generator", None), getattr(theirs, "generator", None)
    if one is another or not (isinstance(one, torch.Generator) and isinstance(another, torch.Generator)):
        return False
    return one.device == another.device and bool(torch.equal(one.get_state(), another.get_state()))
