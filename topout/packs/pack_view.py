"""An open pack as the native library sees it: addresses of its index and of its shards, opened when first needed.

With `is_mapped`, records are read from maps, which is fastest. Else through descriptors, one system call each: then a
file that is cut short meanwhile, or a file system that fails, is a damaged sample instead of the end of the process.
"""

import ctypes
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topout.native.bindings import FieldCopy, Int64s, Library, PackView, address_of
from topout.packs.fields import Field
from topout.packs.layout import column_name
from topout.packs.pack import Pack
from topout.packs.shard import ShardFile

_MOST_READERS = 4
"""Threads that share one batch of records: memory is not faster for more."""
_Column = tuple[str, tuple[int, ...], np.dtype[Any]]
"""Name, shape and type of an array that is gathered."""
_Columns = tuple[list[_Column], "ctypes.Array[FieldCopy]"]
"""And where they stand, as the library takes it, yet without the arrays' addresses."""


class NativePack:
    """Holds on to everything whose address it has given away."""

    def __init__(self, pack: Pack, library: Library, image: str | None = None, *, is_mapped: bool = True) -> None:
        self._pack = pack
        self._library = library
        num_shards = len(pack.shards)
        self._maps = np.zeros(num_shards, np.uint64)
        self._descriptors = np.full(num_shards, -1, np.int32)
        self._ends = np.array([shard.data_end for shard in pack.shards], np.uint64)
        self._opened = np.zeros(num_shards, bool)
        self._held: list[Any] = [pack.index]
        self._is_mapped = is_mapped
        self._is_all_open = False
        self.files: dict[int, ShardFile] = {}
        """Open shards by number; a batch under way needs them."""
        self._columns: dict[int, _Columns] = {}
        variable = [field.name for field in pack.layout.variable]
        self.view = PackView(
            maps=self._maps.ctypes.data,
            descriptors=self._descriptors.ctypes.data,
            data_ends=self._ends.ctypes.data,
            rows=pack.index.ctypes.data,
            num_shards=num_shards,
            num_rows=len(pack),
            row_bytes=pack.row_dtype.itemsize,
            num_variable=len(variable),
            fixed_bytes=sum(field.num_bytes for field in pack.layout.fixed),
            image_field=variable.index(image) if image is not None else 0,
        )

    def open_shards(self, numbers: Int64s) -> None:
        """Those that these samples lie in; a row that points at none is left to the library to refuse."""
        if self._is_all_open:
            return
        if not (self._is_mapped or self._pack.keeps_shards):
            self._let_go()
        wanted = np.unique(self._pack.index["shard"][numbers])
        for number in wanted[wanted < len(self._opened)].tolist():
            shard = None if self._opened[number] else self._pack.near_shard(number)
            if shard is None:
                continue
            if self._is_mapped:
                whole = np.frombuffer(shard.view, np.uint8)
                self._held.append(whole)
                self._maps[number] = whole.ctypes.data
                shard.rest()
            else:
                # taken once: the pack may let a shard rest that is used here
                descriptor = shard.descriptor
                if self._pack.keeps_shards:
                    self._held.append(descriptor)
                self._descriptors[number] = descriptor.number
            self.files[number] = shard
            self._opened[number] = True
        self._is_all_open = bool(self._opened.all()) and self._pack.keeps_shards

    def close(self) -> None:
        """Lets go of all shards, to open them again when they are needed; no batch may be under way."""
        self._is_all_open = False
        self._opened[:] = False
        self._descriptors[:] = -1
        self._maps[:] = 0
        self.files.clear()
        del self._held[1:]
        self._columns.clear()

    def in_use(self) -> list[ShardFile]:
        """Shards that another thread could let go of; whoever has the list keeps them open."""
        return [] if self._pack.keeps_shards else list(self.files.values())

    def _let_go(self) -> None:
        """Of shards that were thrown away, which take their room as long as they are open.

        A batch under way that still wants one does not find it there and is read without the library. Maps stay, since
        a process that reads one when it goes ends.
        """
        for number, shard in list(self.files.items()):
            if self._pack.near_shard(number) is not shard:
                self._descriptors[number] = -1
                self._opened[number] = False
                self.files.pop(number, None)

    def gather(self, numbers: Int64s, fields: tuple[Field, ...]) -> dict[str, NDArray[Any]] | None:
        """Fixed arrays and scalars, one array a field; None where a sample is damaged, or there is none of a number."""
        if not self._is_all_open:
            self.open_shards(numbers)
        columns, places = self._columns.get(id(fields)) or self._prepare(fields)
        num_rows = len(numbers)
        # a batch of small records takes microseconds, so each object that is made here counts
        copies = type(places).from_buffer_copy(places)
        arrays = {}
        for copy, (name, shape, kind) in zip(copies, columns, strict=True):
            arrays[name] = out = np.empty((num_rows, *shape), kind)
            copy.out = address_of(out)
        _held = self.in_use()
        return arrays if self._library.gather(self.view, numbers, copies) == 0 else None

    def _prepare(self, fields: tuple[Field, ...]) -> _Columns:
        columns: list[_Column] = []
        places = []
        for field in fields:
            if field.is_scalar:
                kind, offset = self._pack.row_dtype.fields[column_name(field)][:2]  # type: ignore[index]
                columns.append((field.name, (), kind))
                places.append(FieldCopy(offset=offset, num_bytes=kind.itemsize, is_in_row=1))
            else:
                offset, kind = self._pack.layout.fixed_offsets[field.name], np.dtype(field.dtype)
                if kind.hasobject:
                    raise ValueError(f"{field.name!r} holds objects, which bytes cannot stand for")
                columns.append((field.name, field.shape or (), kind))
                places.append(FieldCopy(offset=offset, num_bytes=field.num_bytes, is_in_row=0))
        # by identity, which costs less than a hash of their names; kept, so that no other tuple can get it
        self._held.append(fields)
        self._columns[id(fields)] = columns, (FieldCopy * len(places))(*places)
        return self._columns[id(fields)]

    def read(self, numbers: Int64s, out: NDArray[np.uint8]) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
        """Whole records into `out`: where each begins, and the status of each."""
        self.open_shards(numbers)
        _held = self.in_use()
        numbers = np.ascontiguousarray(numbers, np.int64)
        return self._library.read(self.view, numbers, out, min(_MOST_READERS, len(os.sched_getaffinity(0))))


def views(packs: list[NativePack]) -> "ctypes.Array[PackView]":
    """The views side by side, as the library takes them; they share addresses with the originals."""
    return (PackView * len(packs))(*(pack.view for pack in packs))
