"""Where samples come from: one format a file, each with `recognises(path)` and `open_listing(path, options)`.

A listing knows names and sizes from metadata before anything is read, so that a plan can be made, and packing goes on
where it was killed. Not for iterables, which know neither: `packing.writer.PackWriter` takes those.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from topout.packs.damage import is_unfinished, not_a_pack
from topout.packs.fields import Field, Sample
from topout.packs.given_path import check_readable
from topout.schema.errors import TopoutError
from topout.schema.plugin import load_plugin, plugin_names

_PACKAGE = "topout.packs.sources"
_LAST = "folder"
"""Recognises any folder, so it is asked last."""


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """What a listing may be told; a source that has no use for an option ignores it."""

    columns: tuple[str, ...] | None = None
    """Fields to take, of sources that have several; None: all. Where there is nothing to choose, an error."""
    num_threads: int = 8
    """For listing what lies on a slow file system."""


@dataclass(frozen=True, kw_only=True)
class BadEntry:
    """An entry that cannot become a sample, and why."""

    number: int
    name: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Listed:
    """What every listing knows of its entries before it reads them; see `Listing` for what each means."""

    fields: tuple[Field, ...]
    names: Sequence[str]
    sizes: NDArray[np.int64]
    fingerprint: str
    classes: tuple[str, ...] | None
    num_files: int
    num_folders: int


class Listing(Protocol):
    """Entries of a source, in an order that does not change from one call to the next."""

    @property
    def fields(self) -> tuple[Field, ...]: ...

    @property
    def names(self) -> Sequence[str]: ...

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Bytes of each entry, from metadata."""

    @property
    def fingerprint(self) -> str:
        """SHA-256 over names, sizes and times of change: another one means that the source has changed."""

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Names of the classes; the field `label` is the class's number."""

    @property
    def num_files(self) -> int: ...

    @property
    def num_folders(self) -> int: ...

    def read_range(self, start: int, stop: int) -> Iterator[Sample | BadEntry]:
        """Entries `start` to `stop`, one result each. Several threads may call it; each call opens what it needs."""


def source_names() -> list[str]:
    return plugin_names(_PACKAGE)


def choose_source(path: Path) -> str:
    """The name of the source that recognises what lies at `path`."""
    check_readable(path)
    if is_unfinished(path):
        raise not_a_pack(path)
    names = [name for name in source_names() if name != _LAST]
    for name in [*names, _LAST]:
        if load_plugin(_PACKAGE, name).recognises(path):
            return name
    raise TopoutError(
        f"{path} is of no kind that topout can pack.",
        why=f"none of {', '.join(names)} recognises it, and it is not a folder of files",
        do="name its kind with --from, or read it in Python and write it with topout.packs.packing.writer.PackWriter",
    )


def open_source(path: Path, name: str | None = None, options: SourceOptions | None = None) -> tuple[str, Listing]:
    """The source's name, and its listing."""
    if name is None:
        name = choose_source(path)
    else:
        check_readable(path)
    module: Any = load_plugin(_PACKAGE, name)
    return name, cast(Listing, module.open_listing(path, options or SourceOptions()))
