"""TFRecord files, one or a folder of them: every record is verified by its checksum, without TensorFlow.

Fields are told from some of the records, spread over the files: a feature that has one value everywhere is a scalar or
a blob, otherwise an array. Records that are no tf.train.Example are taken as they are. Not for compressed files.
"""

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from topout.packs.fields import Field, Sample
from topout.packs.foreign import field_table
from topout.packs.foreign.columns import chosen_fields
from topout.packs.foreign.data_files import (
    DataFile,
    explained,
    find_files,
    fingerprint,
    is_mostly,
    none_found,
    num_folders,
    prefixes,
)
from topout.packs.foreign.example import ExampleError, Feature, first_name, read_example
from topout.packs.foreign.features import NAME, infer_fields, sample_of
from topout.packs.foreign.file_reader import FileReader
from topout.packs.foreign.numbered import NumberedNames
from topout.packs.foreign.signature import only_field_name, shared_kind
from topout.packs.foreign.tfrecord_frames import TAIL_BYTES, checked_record, find_frames
from topout.packs.sources import BadEntry, Listed, SourceOptions
from topout.schema.errors import TopoutError

_EXTENSIONS = (".tfrecord", ".tfrecords", ".tfrec")
_GZIP = b"\x1f\x8b"
_NAME_BYTES = 4200
"""A path of 4,096 bytes and what stands around it."""
_NUM_LOOKED_AT = 256
_LOOKED_AT_BYTES = 64 << 20
_BROKEN = -1


def recognises(path: Path) -> bool:
    return is_mostly(path, lambda name: _is_record_file(name) or name == field_table.FILE_NAME)


def open_listing(path: Path, options: SourceOptions) -> "TFRecordListing":
    with explained(path):
        return _list(path, options)


def _list(path: Path, options: SourceOptions) -> "TFRecordListing":
    files = find_files(path, _is_record_file)
    if not files:
        raise none_found(path, "TFRecord file", "*.tfrecord, *.tfrecords, *.tfrec or *.tfrecord-00000-of-00001")
    for file in files:
        _refuse_compressed(file)
    rows = _find_rows(files)
    told = path / field_table.FILE_NAME
    classes = None
    if path.is_dir() and told.is_file():
        fields, classes = field_table.read_table(told.read_bytes(), str(told))
        is_ours = is_example = True
    else:
        fields, is_example = _look_for_fields(path, files, rows, options.columns)
        is_ours = False
    return TFRecordListing(
        fields=chosen_fields(fields, options.columns),
        names=rows.names,
        sizes=np.maximum(rows.lengths, 0),
        fingerprint=fingerprint(files),
        classes=classes,
        num_files=len(files),
        num_folders=num_folders(files),
        files=files,
        rows=rows,
        is_ours=is_ours,
        is_example=is_example,
    )


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Where every record is; a row of length -1 stands for the rest of a file that cannot be followed."""

    file_numbers: NDArray[np.int32]
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    faults: dict[int, str]
    """By row."""
    names: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class TFRecordListing(Listed):
    files: tuple[DataFile, ...]
    rows: Rows
    is_ours: bool
    is_example: bool

    def read_range(self, start: int, stop: int) -> Iterator[Sample | BadEntry]:
        for number, record in _records(self.files, self.rows, range(start, stop)):
            if isinstance(record, str):
                yield BadEntry(number=number, name=self.names[number], reason=record)
                continue
            try:
                yield self._sample(record)
            except ValueError as error:
                yield BadEntry(number=number, name=self.names[number], reason=str(error))

    def _sample(self, record: bytes) -> Sample:
        if not self.is_example:
            return {self.fields[0].name: record}
        return sample_of(self.fields, read_example(record), is_ours=self.is_ours)


def _is_record_file(name: str) -> bool:
    stem, _, shard = name.rpartition("-of-")  # train.tfrecord-00000-of-00010
    if stem and shard.isdecimal():
        name = stem.rpartition("-")[0]
    return name.lower().endswith(_EXTENSIONS)


def _refuse_compressed(file: DataFile) -> None:
    with file.path.open("rb") as opened:
        if opened.read(2) != _GZIP:
            return
    raise TopoutError(
        f"{file.path} is compressed as a whole.",
        why="single records of it cannot be reached without unpacking all before them",
        do=f"unpack it into another folder and pack that: gunzip -c {shlex.quote(str(file.path))} > "
        f"{shlex.quote(f'OTHER/{file.path.name}')}",
    )


def _find_rows(files: Sequence[DataFile]) -> Rows:
    file_numbers, offsets, lengths = [], [], []
    faults: dict[int, str] = {}
    names: list[str] | None = [] if _first_record_has_a_name(files) else None
    parts = []
    num_rows = 0
    for number, (file, prefix) in enumerate(zip(files, prefixes(files), strict=True)):
        found: list[str | None] = []
        look_at = _name_collector(found) if names is not None else None
        frames = find_frames(file.path, look_at, _NAME_BYTES if look_at else 0)
        count = len(frames.offsets)
        offsets.append(frames.offsets)
        lengths.append(frames.lengths)
        if frames.fault is not None:
            faults[num_rows + count] = f"the rest of {file.name} cannot be read: {frames.fault}"
            offsets.append(np.zeros(1, np.int64))
            lengths.append(np.full(1, _BROKEN, np.int64))
            found.append(None)
            count += 1
        numbered = NumberedNames([(prefix, count)])
        if names is not None:
            names += [numbered[row] if name is None else name for row, name in enumerate(found)]
        parts.append((prefix, count))
        file_numbers.append(np.full(count, number, np.int32))
        num_rows += count
    return Rows(
        file_numbers=np.concatenate(file_numbers),
        offsets=np.concatenate(offsets),
        lengths=np.concatenate(lengths),
        faults=faults,
        names=NumberedNames(parts) if names is None else names,
    )


def _name_collector(found: list[str | None]) -> Callable[[bytes], None]:
    return lambda head: found.append(first_name(head, NAME))


def _first_record_has_a_name(files: Sequence[DataFile]) -> bool:
    for file in files:
        with file.path.open("rb") as opened:
            head = opened.read(12 + _NAME_BYTES)[12:]
        if head:
            return first_name(head, NAME) is not None
    return False


def _records(files: Sequence[DataFile], rows: Rows, numbers: Sequence[int]) -> Iterator[tuple[int, bytes | str]]:
    """The bytes of each record, or why there are none."""
    with FileReader(files) as reader:
        for number in numbers:
            if number in rows.faults:
                yield number, rows.faults[number]
                continue
            try:
                file_number, offset, length = int(rows.file_numbers[number]), rows.offsets[number], rows.lengths[number]
                yield number, checked_record(reader.read(file_number, int(offset), int(length) + TAIL_BYTES))
            except (OSError, ValueError) as error:
                yield number, str(error)


def _look_for_fields(
    path: Path, files: Sequence[DataFile], rows: Rows, columns: Sequence[str] | None
) -> tuple[tuple[Field, ...], bool]:
    """The fields, and whether the records are Examples."""
    step = max(1, len(rows.lengths) // _NUM_LOOKED_AT)
    examples: list[dict[str, Feature]] = []
    others: list[bytes] = []
    looked_at_bytes = 0
    for _, record in _records(files, rows, range(0, len(rows.lengths), step)):
        if isinstance(record, str):
            continue
        try:
            examples.append(read_example(record))
        except ExampleError:
            others.append(record[:16])
        looked_at_bytes += len(record)
        if looked_at_bytes > _LOOKED_AT_BYTES:
            break
    if not any(examples):
        kind = shared_kind(others)
        return (Field(name=only_field_name(kind), kind=kind),), False
    try:
        return infer_fields(examples, columns), True
    except ValueError as error:
        raise TopoutError(
            f"The records of {path} have no common shape.",
            why=str(error),
            do="leave the feature out by naming the --columns to take",
        ) from error
