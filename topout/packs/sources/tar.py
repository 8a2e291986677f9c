"""Tar archives, one or a folder of them: WebDataset's samples by key, or plain files by path.

Members are found once, by their heads, and then read at their offsets. Where no two members share a key (the path up to
the first dot of its last part), members are files as in a folder. Not for compressed archives, which have no offsets.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from topout.packs.fields import Field, Sample
from topout.packs.foreign.columns import chosen_fields
from topout.packs.foreign.data_files import (
    DataFile,
    explained,
    find_files,
    fingerprint,
    is_mostly,
    none_found,
    num_folders,
)
from topout.packs.foreign.field_table import read_table
from topout.packs.foreign.file_reader import FileReader
from topout.packs.foreign.signature import HEAD_BYTES, only_field_name, shared_kind
from topout.packs.foreign.tar_groups import Group, archive_groups, told_fields, unique_names
from topout.packs.foreign.webdataset import extensions_of, fields_of, value_of
from topout.packs.sources import BadEntry, Listed, SourceOptions
from topout.packs.sources.folder import looks_like_splits
from topout.schema.errors import TopoutError

_COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
_FOLDER = "/"
"""Stands for an extension: the field that a plain file's folder gives."""
_NUM_LOOKED_AT = 16
_LOOKED_AT_BYTES = 16 << 20


def recognises(path: Path) -> bool:
    return is_mostly(path, lambda name: name.lower().endswith((".tar", *_COMPRESSED)))


def open_listing(path: Path, options: SourceOptions) -> "TarListing":
    with explained(path):
        return _list(path, options)


def _list(path: Path, options: SourceOptions) -> "TarListing":
    files = find_files(path, lambda name: name.lower().endswith((".tar", *_COMPRESSED)))
    if not files:
        raise none_found(path, "tar archive", "*.tar")
    for file in files:
        _refuse_compressed(file)
    found = [archive_groups(file, number) for number, file in enumerate(files)]
    groups = [group for archive in found for group in archive.groups]
    table = told_fields(found)
    classes: tuple[str, ...] | None = None
    is_plain = table is None and all(len(group.members) <= 1 for group in groups)
    if table is not None:
        fields, classes = read_table(table, str(path))
        by_extension = extensions_of(fields)
    elif is_plain or all(group.problem for group in groups):
        is_plain = True
        by_extension = {"": _plain_field(files, groups)}
        classes = _classes(by_extension[""], groups)
        if classes is not None:
            by_extension[_FOLDER] = Field(name="label", kind="int")
    else:
        by_extension = _fields(files, groups)
    chosen = chosen_fields(list(by_extension.values()), options.columns)
    return TarListing(
        fields=chosen,
        names=unique_names(files, groups, is_plain=is_plain),
        sizes=np.array([sum(size for _, size in group.members.values()) for group in groups], np.int64),
        fingerprint=fingerprint(files),
        classes=classes,
        num_files=len(files),
        num_folders=num_folders(files),
        files=files,
        groups=groups,
        extensions={extension: field for extension, field in by_extension.items() if field in chosen},
        all_extensions=None if is_plain else frozenset(by_extension),
        labels={name: number for number, name in enumerate(classes or ())} if is_plain else {},
    )


@dataclass(frozen=True, kw_only=True)
class TarListing(Listed):
    files: tuple[DataFile, ...]
    groups: list[Group]
    extensions: dict[str, Field]
    all_extensions: frozenset[str] | None
    """What every sample has; None where members are plain files."""
    labels: dict[str, int]
    """Of plain files, by top folder."""

    def read_range(self, start: int, stop: int) -> Iterator[Sample | BadEntry]:
        with FileReader(self.files) as archives:
            for number in range(start, stop):
                try:
                    yield self._sample(archives, self.groups[number])
                except (OSError, ValueError) as error:
                    yield BadEntry(number=number, name=self.names[number], reason=str(error))

    def _sample(self, archives: FileReader, group: Group) -> Sample:
        if group.problem is not None:
            raise ValueError(group.problem)
        if self.all_extensions is None:
            (place,) = group.members.values()
            return {
                field.name: self.labels[_top(group.path)]
                if extension == _FOLDER
                else archives.read(group.archive, *place)
                for extension, field in self.extensions.items()
            }
        _check_members(set(group.members), self.all_extensions)
        return {
            field.name: value_of(field, archives.read(group.archive, *group.members[extension]))
            for extension, field in self.extensions.items()
        }


def _check_members(extensions: set[str], expected: frozenset[str]) -> None:
    if extensions == expected:
        return
    lacks = ", ".join(f".{extension}" for extension in sorted(expected - extensions))
    more = ", ".join(f".{extension}" for extension in sorted(extensions - expected))
    parts = [f"lacks {lacks}"] * bool(lacks) + [f"has {more}"] * bool(more)
    raise ValueError(f"it {' and '.join(parts)}, unlike the other samples")


def _fields(files: Sequence[DataFile], groups: Sequence[Group]) -> dict[str, Field]:
    whole = [group for group in groups if group.problem is None]
    extensions, _ = Counter(frozenset(group.members) for group in whole).most_common(1)[0]
    alike = [group for group in whole if group.members.keys() == extensions]
    return fields_of(sorted(extensions), lambda extension: _look(files, alike, extension))


def _plain_field(files: Sequence[DataFile], groups: Sequence[Group]) -> Field:
    heads: list[bytes] = []
    with FileReader(files) as archives:
        for group in _some([group for group in groups if group.problem is None]):
            ((offset, size_bytes),) = group.members.values()
            heads.append(archives.read(group.archive, offset, min(size_bytes, HEAD_BYTES)))
    kind = shared_kind(heads)
    return Field(name=only_field_name(kind), kind=kind)


def _classes(field: Field, groups: Sequence[Group]) -> tuple[str, ...] | None:
    """Top folders, as the folder source has them, when every member is an image and lies in one."""
    if not field.is_image or not all("/" in group.path for group in groups if group.problem is None):
        return None
    tops = sorted({_top(group.path) for group in groups if group.problem is None})
    return None if looks_like_splits(tops) else tuple(tops) or None


def _top(path: str) -> str:
    return path.partition("/")[0]


def _look(files: Sequence[DataFile], groups: Sequence[Group], extension: str) -> Iterable[bytes]:
    left_bytes = _LOOKED_AT_BYTES
    with FileReader(files) as archives:
        for group in _some(groups):
            offset, size_bytes = group.members[extension]
            if size_bytes <= left_bytes:
                left_bytes -= size_bytes
                yield archives.read(group.archive, offset, size_bytes)


def _some(groups: Sequence[Group]) -> Sequence[Group]:
    return groups[:: max(1, len(groups) // _NUM_LOOKED_AT)]


def _refuse_compressed(file: DataFile) -> None:
    if file.name.lower().endswith(_COMPRESSED):
        raise TopoutError(
            f"{file.path} is compressed as a whole.",
            why="single members of it cannot be reached without unpacking all before them",
            do="decompress it to a plain .tar (gunzip, bunzip2, unxz, zstd -d) and pack that",
        )
