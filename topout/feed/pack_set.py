"""One or several packs as one run of samples: pack k's numbers begin where pack k - 1's end.

Packs of one set have the same fields and the same classes; what differs goes through several loaders.
"""

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from topout.epoch.order import Int64s
from topout.packs.fields import Field, Sample
from topout.packs.pack import Pack, open_pack
from topout.schema.errors import TopoutError

Source = str | Path | Pack


class PackSet:
    """`packs` opened here are closed by `close`; those that came open are left to their owner."""

    def __init__(self, sources: Source | Sequence[Source], on_damage: str = "stop", *, is_staged: bool = False) -> None:
        """Packs behind an address are always staged; with `is_staged` those in a folder are, too."""
        # packs stay strict here whatever the policy: only the reader of a batch knows what to put in a sample's place
        policy = "repair" if on_damage == "repair" else "stop"
        listed = [sources] if isinstance(sources, (str, Path)) or not isinstance(sources, Sequence) else list(sources)
        if not listed:
            raise TopoutError("No pack was given.", why="There is nothing to load from.", do="pass a path or several")
        self._own: list[Pack] = []
        packs: list[Pack] = []
        try:
            for source in listed:
                if isinstance(source, (str, Path)):
                    self._own.append(_opened(source, policy, is_staged=is_staged))
                    packs.append(self._own[-1])
                else:
                    packs.append(_checked(source))
            self.packs = tuple(packs)
            self._check_alike()
        except BaseException:
            self.close()
            raise
        self.sizes = tuple(len(pack) for pack in packs)
        self.starts: Int64s = np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64)

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def fields(self) -> tuple[Field, ...]:
        return self.packs[0].fields

    @property
    def classes(self) -> tuple[str, ...] | None:
        return self.packs[0].manifest.classes

    @property
    def identities(self) -> tuple[str, ...]:
        """What tells one pack's contents from another's: the index's checksum covers every sample's."""
        manifests = [pack.manifest for pack in self.packs]
        return tuple(f"{one.pack_id}-{one.index.data_crc:08x}-{one.num_samples}" for one in manifests)

    def shard_starts(self) -> list[int]:
        """The first sample of each shard of all packs, and the number of all samples."""
        sizes = [shard.num_samples for pack in self.packs for shard in pack.manifest.shards]
        return list(accumulate(sizes, initial=0))

    def find(self, number: int) -> tuple[Pack, int]:
        """The pack of a sample, and its number there."""
        place = int(np.searchsorted(self.starts, number, side="right")) - 1
        return self.packs[place], number - int(self.starts[place])

    def sample(self, number: int) -> Sample:
        pack, within = self.find(number)
        return pack.sample(within)

    def name(self, number: int) -> str:
        pack, within = self.find(number)
        return pack.name(within)

    def gather(self, numbers: Int64s, names: Sequence[str]) -> dict[str, np.ndarray[Any, Any]]:
        """Fixed arrays and scalars of samples from any of the packs."""
        if len(self.packs) == 1:
            return self.packs[0].gather(numbers, names)
        place = np.searchsorted(self.starts, numbers, side="right") - 1
        together: dict[str, np.ndarray[Any, Any]] = {}
        for number in np.unique(place).tolist():
            rows = np.flatnonzero(place == number)
            for name, part in self.packs[number].gather(numbers[rows] - self.starts[number], names).items():
                if name not in together:
                    together[name] = np.empty((len(numbers), *part.shape[1:]), dtype=part.dtype)
                together[name][rows] = part
        return together

    def column(self, name: str) -> np.ndarray[Any, Any]:
        return np.concatenate([pack.column(name) for pack in self.packs])

    def close(self) -> None:
        for pack in self._own:
            pack.close()

    def _check_alike(self) -> None:
        first = self.packs[0]
        for other in self.packs[1:]:
            if (other.fields, other.manifest.classes) != (first.fields, first.manifest.classes):
                what = "fields" if other.fields != first.fields else "classes"
                raise TopoutError(
                    f"{other.path} and {first.path} have different {what}.",
                    why="A batch mixes samples of all packs, so they must be alike.",
                    do="pack them with the same options, or use one loader for each",
                )


def _checked(source: Any) -> Pack:
    if not isinstance(source, Pack):
        raise TopoutError(
            f"{source!r} is no pack.",
            why="Samples come from packs: paths, addresses, or packs that are open.",
            do="topout.Loader('train.pack', ...); make one with: topout pack SRC train.pack",
        )
    return source


def _opened(source: str | Path, policy: str, *, is_staged: bool) -> Pack:
    from topout.feed.staging.origin import is_remote

    if not is_staged and not is_remote(source):
        return open_pack(source, policy)
    from topout.feed.staging.staged_pack import open_staged

    return open_staged(str(source), policy)
