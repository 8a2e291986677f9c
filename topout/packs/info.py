"""What a source or a pack amounts to: files, folders, bytes, and how large its samples are. Reads metadata only."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topout.packs.fields import Field
from topout.packs.given_path import check_readable
from topout.packs.manifest import MANIFEST_NAME, FileEntry
from topout.packs.pack import open_pack
from topout.packs.sources import open_source

INFO_VERSION = 1
_SHARES = {"min": 0.0, "p01": 0.01, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p99": 0.99, "max": 1.0}


@dataclass(frozen=True, kw_only=True)
class SizeBin:
    """Samples of at least `from_bytes` and below four times that."""

    from_bytes: int
    num_samples: int
    total_bytes: int


@dataclass(frozen=True, kw_only=True)
class Info:
    """`files` and `folders` are those of the source, also when a pack is asked, where it knows them."""

    version: int = INFO_VERSION
    path: str
    format: str
    """`pack`, or the name of the source's plug-in."""
    num_samples: int
    num_files: int | None
    num_folders: int | None
    total_bytes: int
    """Of the samples."""
    disk_bytes: int | None
    """Of a pack's files; None: not a pack."""
    sample_bytes: dict[str, int]
    """Smallest, quantiles, largest."""
    size_bins: tuple[SizeBin, ...]
    fields: tuple[Field, ...]
    classes: tuple[str, ...] | None
    num_shards: int | None
    num_skipped: int | None
    options: dict[str, Any]
    source: str | None
    notes: tuple[str, ...] = ()


def describe(path: Path, source: str | None = None) -> Info:
    """Of a pack, or of anything that can be packed."""
    check_readable(path)
    if source is None and (path / MANIFEST_NAME).exists():
        return _of_pack(path)
    name, listing = open_source(path, source)
    sizes = np.asarray(listing.sizes)
    return Info(
        path=str(path),
        format=name,
        num_samples=len(sizes),
        num_files=listing.num_files,
        num_folders=listing.num_folders,
        total_bytes=int(sizes.sum()),
        disk_bytes=None,
        sample_bytes=_quantiles(sizes),
        size_bins=_bins(sizes),
        fields=listing.fields,
        classes=listing.classes,
        num_shards=None,
        num_skipped=None,
        options={},
        source=None,
        notes=tuple(getattr(listing, "notes", ())),
    )


def _of_pack(path: Path) -> Info:
    with open_pack(path) as pack:
        manifest = pack.manifest
        pack.index_file.verify()
        sizes = pack.index["length"].astype(np.int64)
    entries: list[FileEntry] = [manifest.index, manifest.names, *manifest.shards]
    return Info(
        path=str(path),
        format="pack",
        num_samples=manifest.num_samples,
        num_files=None if manifest.source is None else manifest.source.num_files,
        num_folders=None if manifest.source is None else manifest.source.num_folders,
        total_bytes=int(sizes.sum()),
        disk_bytes=sum(entry.size_bytes for entry in entries) + (path / MANIFEST_NAME).stat().st_size,
        sample_bytes=_quantiles(sizes),
        size_bins=_bins(sizes),
        fields=manifest.fields,
        classes=manifest.classes,
        num_shards=len(manifest.shards),
        num_skipped=manifest.num_skipped,
        options=dict(manifest.options),
        source=None if manifest.source is None else manifest.source.path,
        notes=tuple(_other_sizes(path, entries)),
    )


def _other_sizes(path: Path, entries: Sequence[FileEntry]) -> Iterator[str]:
    for entry in entries:
        size_bytes = (path / entry.file).stat().st_size
        if size_bytes != entry.size_bytes:
            yield f"{entry.file} is damaged: it has {size_bytes:,} bytes, not {entry.size_bytes:,} as it was written."


def _quantiles(sizes: NDArray[np.int64]) -> dict[str, int]:
    if not len(sizes):
        return {}
    values = np.quantile(sizes, list(_SHARES.values()), method="nearest").tolist()
    return dict(zip(_SHARES, map(int, values), strict=True))


def _bins(sizes: NDArray[np.int64]) -> tuple[SizeBin, ...]:
    """Powers of four; zero bytes have a bin of their own."""
    powers = np.where(sizes > 0, np.floor(np.log2(np.maximum(sizes, 1)) / 2).astype(np.int64), -1)
    return tuple(
        SizeBin(
            from_bytes=4**power if power >= 0 else 0,
            num_samples=int((powers == power).sum()),
            total_bytes=int(sizes[powers == power].sum()),
        )
        for power in np.unique(powers).tolist()
    )
