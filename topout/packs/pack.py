"""A pack, opened for reading: any sample by number, verified on every read, batches of fixed fields as one gather.

Opening reads pack.json and maps the index; nothing is done per sample. Any number of threads may read at once, and
processes forked later share the index. Records are read by system calls, so that what cannot be read is a damaged
sample; the library gathers small ones from maps. Not for training loops as such: `topout.Loader` decodes and prefetches
as well.
"""

import errno
import operator
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from topout.host.open_files import allow_open_files, most_open_files
from topout.packs.damage import POLICIES, DamagedPack, DamagedSample
from topout.packs.fields import Field, Sample
from topout.packs.layout import HEADER_BYTES, FileKind, MisshapenError, column_name, row_dtype
from topout.packs.manifest import Manifest, read_manifest
from topout.packs.mapped_file import MappedFile
from topout.packs.names import Names
from topout.packs.record import RecordLayout
from topout.packs.shard import ShardFile
from topout.schema.errors import TopoutError

if TYPE_CHECKING:
    from topout.packs.pack_view import NativePack

Read = TypeVar("Read")
Locate = Callable[[str], Path]
"""From a file's name in the pack to where it is to be read, such as a copy on a local disk."""
Found = tuple[np.void, memoryview]
"""A sample's index row and its record, matching."""
Repair = Callable[["Pack", int], Found]
"""Row and record of a damaged sample, from elsewhere; raises TopoutError when there is no such place."""


class Pack:
    """Made by `open_pack`. `damage` lists the damaged samples that were left out or mended so far."""

    keeps_shards = True
    """Whether a shard that is here stays here."""

    def __init__(
        self, path: Path, manifest: Manifest, *, on_damage: str, locate: Locate, repair: Repair | None
    ) -> None:
        self.path = path
        self.manifest = manifest
        self.fields = manifest.fields
        self.on_damage = on_damage
        self.damage: list[DamagedSample] = []
        self.layout = RecordLayout(manifest.fields, manifest.dictionary_bytes())
        self.row_dtype = row_dtype(manifest.fields)
        pack_id = bytes.fromhex(manifest.pack_id)
        self.index_file = MappedFile(
            path, locate(manifest.index.file), manifest.index, kind=FileKind.INDEX, pack_id=pack_id
        )
        self.names_file = MappedFile(
            path, locate(manifest.names.file), manifest.names, kind=FileKind.NAMES, pack_id=pack_id
        )
        self.shards = tuple(
            ShardFile(path, locate(entry.file), entry, pack_id, number) for number, entry in enumerate(manifest.shards)
        )
        # sample numbers at which shards begin, and their end
        self.starts = list(accumulate((entry.num_samples for entry in manifest.shards), initial=0))
        self.names = Names(self.names_file, manifest.num_samples)
        self.index: NDArray[Any] = np.frombuffer(
            self.index_file.view, dtype=self.row_dtype, count=manifest.num_samples, offset=HEADER_BYTES
        )
        self._repair = repair
        self._is_closed = False
        # a descriptor and a map of each, at most
        allow_open_files(2 * len(self.shards))
        self._most_open = most_open_files() // 2
        self._num_opened = 0
        self._native: Any = None
        """None: not looked for yet; False: not to be had."""
        self._gathered_fields: dict[tuple[str, ...] | None, tuple[Field, ...]] = {}

    def __len__(self) -> int:
        return self.manifest.num_samples

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._is_closed = True
        self.index = np.empty(0, self.row_dtype)
        self._native = None
        for file in (self.index_file, self.names_file, *self.shards):
            file.close()

    def name(self, number: int) -> str:
        return self.names[self._checked(number)]

    def find(self, name: str) -> int | None:
        """The number of the sample of that name; None where there is none."""
        if self._is_closed:
            raise self._closed()
        return self.names.find(name)

    def record(self, number: int) -> memoryview:
        """The record of a sample, after its checksum, which covers its index row and number too, was verified."""
        return self._found(self._checked(number))[1]

    def sample(self, number: int) -> Sample:
        """All fields of a sample, decoded, in the order of the fields; images are their bytes."""
        number = self._checked(number)
        row, record = self._found(number)
        values = self._decoded(number, record, self.layout.decode)
        for field in self.layout.scalars:
            values[field.name] = row[column_name(field)].item()
        return {field.name: values[field.name] for field in self.fields}

    def samples(self, numbers: Iterable[int]) -> list[Sample]:
        """Those of `numbers` that are whole, where damage is to be skipped; else all of them."""
        return self._all(numbers, self.sample)

    def field_bytes(self, number: int, name: str) -> memoryview:
        """The stored bytes of a variable field, such as a JPEG, as they lie in the record."""
        names = [field.name for field in self.layout.variable]
        if name not in names:
            raise TopoutError(
                f"{self.path} has no field {name!r} of varying length.",
                why=f"it has {', '.join(names) or 'none'}",
                do="read arrays and numbers with sample, gather or column",
            )
        number = self._checked(number)
        return self._decoded(number, self._found(number)[1], self.layout.split)[names.index(name)]

    def near_shard(self, number: int) -> ShardFile | None:
        """The shard as it can be opened here and now; a staged pack may not have it near yet, or not any more."""
        return self.shards[number]

    def column(self, name: str) -> NDArray[Any]:
        """A scalar field of all samples, from the index; the index is verified whole, once."""
        if self._is_closed:
            raise self._closed()
        field = self._field(name)
        if not field.is_scalar:
            raise TopoutError(
                f"{name!r} is no column.", why=f"it is {field.kind}", do="columns are of kind int or float"
            )
        self.index_file.verify()
        column: NDArray[Any] = self.index[column_name(field)]
        return column

    def gather(
        self, numbers: Sequence[int] | NDArray[Any], names: Sequence[str] | None = None
    ) -> dict[str, NDArray[Any]]:
        """Fixed arrays and scalars of many samples, one array a field, verified; without those skipped as damaged."""
        if self._is_closed:
            raise self._closed()
        wanted = np.ascontiguousarray(numbers, dtype=np.int64)
        fields = self._gatherable(None if names is None else tuple(names))
        is_of_numbers = fields[0].is_scalar if len(fields) == 1 else all(field.is_scalar for field in fields)
        if not is_of_numbers:
            native = self._native_pack()
            gathered = None if native is None else native.gather(wanted, fields)
            if gathered is not None:
                return gathered
        if len(wanted) and not -len(self) <= wanted.min() <= wanted.max() < len(self):
            raise IndexError(f"samples {wanted.min()} to {wanted.max()} of a pack of {len(self)}")
        wanted = wanted % len(self) if len(self) else wanted
        if is_of_numbers and self._is_index_whole():
            # numbers stand in the index, whose checksum covers them: no shard need be touched
            rows = self.index[wanted]
            return {field.name: np.ascontiguousarray(rows[column_name(field)]) for field in fields}
        return self._gathered(wanted, fields)

    def records(self, numbers: Sequence[int] | NDArray[Any]) -> list[memoryview]:
        """The records of many samples in one block of memory, each verified; without those skipped as damaged."""
        if self._is_closed:
            raise self._closed()
        wanted = np.ascontiguousarray(numbers, dtype=np.int64)
        native = self._native_pack()
        if native is not None and len(wanted) and 0 <= wanted.min() <= wanted.max() < len(self):
            block = np.empty(int(self.index["length"][wanted].astype(np.int64).sum()), np.uint8)
            offsets, status = native.read(wanted, block)
            if not status.any():
                view, ends = block.data, offsets.tolist()
                return [view[start:end] for start, end in pairwise(ends)]
        return self._all(wanted.tolist(), self.record)

    def shard_of(self, number: int) -> int:
        """Told from the manifest, not from the index row, which may be what is damaged."""
        return bisect_right(self.starts, number) - 1

    def damaged(self, number: int, why: str) -> DamagedSample:
        """The error about a sample, with its name where the names can still be read."""
        try:
            name = self.names[number]
        except TopoutError:
            name = None
        shard = self.shards[self.shard_of(number)].entry.file
        return DamagedSample(self.path, shard=shard, number=number, name=name, why=why)

    def verified(self, number: int, row: np.void) -> memoryview:
        """The record that a row points at; raises DamagedSample where it does not match the row's checksum."""
        # the shard is told from the number: a row that says otherwise is damaged
        shard = self.shards[self.shard_of(number)]
        if not shard.is_open:
            self._open(shard)
        try:
            return shard.record(row, number)
        except MisshapenError as error:
            raise self.damaged(number, str(error)) from error

    def _found(self, number: int) -> Found:
        row = self.index[number]
        try:
            return row, self.verified(number, row)
        except DamagedSample as damaged:
            if self.on_damage != "repair" or self._repair is None:
                raise
            found = self._repair(self, number)
            self.damage.append(damaged)
            return found

    def _open(self, shard: ShardFile) -> None:
        """Half of the files that a process may have open are for others: shards are closed, to open when needed."""
        if self._num_opened >= self._most_open:
            self._let_rest()
        try:
            shard.open()
        except TopoutError as error:
            # maps, other packs and the script have files open as well
            if getattr(error.__cause__, "errno", None) != errno.EMFILE:
                raise
            self._let_rest()
            shard.open()
        self._num_opened += 1

    def _let_rest(self) -> None:
        self._num_opened = 0
        for shard in self.shards:
            shard.rest()

    def _is_index_whole(self) -> bool:
        try:
            self.index_file.verify()
        except DamagedPack:
            return False
        return True

    def _native_pack(self) -> "NativePack | None":
        """None without the library."""
        if self._native is None:
            from topout.native.bindings import library
            from topout.packs.pack_view import NativePack

            compiled = library()
            # a map would keep the room of a shard that is thrown away
            self._native = False if compiled is None else NativePack(self, compiled, is_mapped=self.keeps_shards)
        return self._native or None

    def _gatherable(self, names: tuple[str, ...] | None) -> tuple[Field, ...]:
        """Found out once: a batch of small records takes less time than looking its fields up."""
        if names not in self._gathered_fields:
            # a name given twice is one array: of two, the first would be gone while the library fills it
            wanted = None if names is None else dict.fromkeys(names)
            fields = (*self.layout.fixed, *self.layout.scalars) if wanted is None else tuple(map(self._field, wanted))
            for field in fields:
                if field.is_variable:
                    raise TopoutError(
                        f"{field.name!r} cannot be gathered.",
                        why="its length varies",
                        do="read it with samples or field_bytes",
                    )
            self._gathered_fields[names] = fields
        return self._gathered_fields[names]

    def _gathered(self, numbers: NDArray[np.int64], fields: Sequence[Field]) -> dict[str, NDArray[Any]]:
        whole = self._all(numbers.tolist(), self._found)
        rows = np.array([row for row, _ in whole], dtype=self.row_dtype)
        gathered: dict[str, NDArray[Any]] = {}
        for field in fields:
            if field.is_scalar:
                gathered[field.name] = np.ascontiguousarray(rows[column_name(field)])
                continue
            start, shape = self.layout.fixed_offsets[field.name], field.shape or ()
            out = np.empty((len(whole), *shape), dtype=field.dtype)
            for place, (_, record) in enumerate(whole):
                part = record[start : start + field.num_bytes]
                out[place] = np.frombuffer(part, dtype=field.dtype).reshape(shape)
            gathered[field.name] = out
        return gathered

    def _decoded(self, number: int, record: memoryview, decode: Callable[[memoryview], Read]) -> Read:
        try:
            return decode(record)
        except ValueError as error:
            # the checksum held, so this was written so: a writer of this format that is not ours
            raise self.damaged(number, str(error)) from error

    def _all(self, numbers: Iterable[int], read: Callable[[int], Read]) -> list[Read]:
        if self.on_damage != "skip":
            return [read(number) for number in numbers]
        found = []
        for number in numbers:
            try:
                found.append(read(number))
            except DamagedSample as damaged:
                self.damage.append(damaged)
        return found

    def _field(self, name: str) -> Field:
        for field in self.fields:
            if field.name == name:
                return field
        raise TopoutError(
            f"{self.path} has no field {name!r}.",
            why=f"it has {', '.join(field.name for field in self.fields)}",
            do="choose one of these",
        )

    def _closed(self) -> TopoutError:
        """Also before the library is given addresses that are no longer the pack's."""
        return TopoutError(
            f"{self.path} is closed.",
            why="close() was called, or its with block was left",
            do="read before that, or open it again with open_pack",
        )

    def _checked(self, number: int) -> int:
        if self._is_closed:
            raise self._closed()
        place = operator.index(number)
        if not -len(self) <= place < len(self):
            raise IndexError(f"sample {place} of a pack of {len(self)}")
        return place % len(self)


def open_pack(
    path: str | Path,
    on_damage: str = "stop",
    *,
    locate: Locate | None = None,
    repair: Repair | None = None,
) -> Pack:
    """Opens the pack at `path`; see `damage.POLICIES` for what happens when a sample is not what was written."""
    folder = Path(path)
    if on_damage not in POLICIES:
        raise TopoutError(
            f"There is no policy {on_damage!r}.",
            why="damaged samples stop, are skipped or repaired",
            do="on_damage='stop'",
        )
    manifest = read_manifest(folder)
    if locate is None:
        _check_presence(folder, manifest)
    if repair is None and on_damage == "repair":
        from topout.packs.repair import reread

        repair = reread
    return Pack(folder, manifest, on_damage=on_damage, locate=locate or folder.joinpath, repair=repair)


def _check_presence(folder: Path, manifest: Manifest) -> None:
    """One listing of the folder: cheaper than a stat of every shard, and enough to name a missing one at once."""
    with os.scandir(folder) as entries:
        there = {entry.name for entry in entries}
    for entry in (manifest.index, manifest.names, *manifest.shards):
        if entry.file not in there:
            raise DamagedPack(folder, f"{folder / entry.file} is missing.", "the pack's list of files has it")
