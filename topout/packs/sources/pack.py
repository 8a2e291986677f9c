"""A pack, to be packed again with other codecs, another shard size, or smaller images.

Samples are verified as they are read; a damaged one is a bad entry. Not for copying a pack, which `cp -r` does.
"""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from topout.packs.damage import DamagedSample
from topout.packs.fields import Sample
from topout.packs.foreign.columns import chosen_fields
from topout.packs.manifest import MANIFEST_NAME
from topout.packs.pack import open_pack
from topout.packs.sources import BadEntry, SourceOptions


class PackListing:
    """Made by `open_listing`."""

    def __init__(self, path: Path, columns: Sequence[str] | None) -> None:
        self._pack = open_pack(path)
        self.mended_by = f"topout data check {path} --repair"
        """What to do about a damaged sample."""
        self.fields = chosen_fields(self._pack.fields, columns)
        self._names_of_fields = [field.name for field in self.fields]
        self.classes = self._pack.manifest.classes if "label" in self._names_of_fields else None
        self.names: Sequence[str] = [self._pack.name(number) for number in range(len(self._pack))]
        self.sizes: NDArray[np.int64] = self._pack.index["length"].astype(np.int64)
        self.fingerprint = hashlib.sha256(self._pack.manifest.encode()).hexdigest()
        self.num_files = len(self._pack.shards) + 3
        self.num_folders = 1

    def read_range(self, start: int, stop: int) -> Iterator[Sample | BadEntry]:
        for number in range(start, stop):
            try:
                sample = self._pack.sample(number)
                yield {name: sample[name] for name in self._names_of_fields}
            except DamagedSample as damaged:
                yield BadEntry(number=number, name=self.names[number], reason=damaged.why)


def recognises(path: Path) -> bool:
    return (path / MANIFEST_NAME).is_file()


def open_listing(path: Path, options: SourceOptions) -> PackListing:
    return PackListing(path, options.columns)
