"""An open pack as the native library sees it: addresses of its index and of its shards, opened when first needed.

Long records are read through descriptors: one system call each, and a file that is cut short meanwhile is an error
instead of the end of the process. Short ones are read from maps, since a call would cost more than the copy.
"""

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topout.native.library import FieldCopy, Int64s, Library, PackView
from topout.packs.layout import column_name
from topout.packs.pack import Pack

SHORT_BYTES = 16 << 10


class NativePack:
    """Holds on to everything whose address it has given away."""

    def __init__(self, pack: Pack, library: Library, image: str | None = None) -> None:
        self._pack = pack
        self._library = library
        num_shards = len(pack.shards)
        self._maps = np.zeros(num_shards, np.uint64)
        self._descriptors = np.full(num_shards, -1, np.int32)
        self._ends = np.array([shard.data_end for shard in pack.shards], np.uint64)
        self._opened = np.zeros(num_shards, bool)
        self._held: list[Any] = [pack.index]
        total = sum(shard.size_bytes for shard in pack.shards)
        self._is_mapped = total < SHORT_BYTES * max(1, len(pack))
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
        if self._opened.all():
            return
        wanted = np.unique(self._pack.index["shard"][numbers])
        for number in wanted[wanted < len(self._opened)].tolist():
            if self._opened[number] or not self._pack.has_shard(number):
                continue
            shard = self._pack.shards[number]
            if self._is_mapped:
                whole = np.frombuffer(shard.view, np.uint8)
                self._held.append(whole)
                self._maps[number] = whole.ctypes.data
            self._descriptors[number] = shard.fd
            self._opened[number] = True

    def gather(self, numbers: Int64s, names: list[str]) -> tuple[dict[str, NDArray[Any]], NDArray[np.uint8]]:
        """Fixed arrays and scalars, one array a field, and the status of each sample (0: whole)."""
        self.open_shards(numbers)
        arrays: dict[str, NDArray[Any]] = {}
        copies = []
        for field in self._pack.fields:
            if field.name not in names:
                continue
            if field.is_scalar:
                dtype, offset = self._pack.row_dtype.fields[column_name(field)][:2]  # type: ignore[index]
                out = np.empty(len(numbers), dtype)
                num_bytes = dtype.itemsize
            else:
                offset = self._pack.layout.fixed_offsets[field.name]
                out = np.empty((len(numbers), *(field.shape or ())), field.dtype)
                num_bytes = field.num_bytes
            arrays[field.name] = out
            copies.append(FieldCopy(offset=offset, num_bytes=num_bytes, is_in_row=field.is_scalar, out=out.ctypes.data))
        status = self._library.gather(self.view, np.ascontiguousarray(numbers, np.int64), copies)
        return {name: arrays[name] for name in names}, status

    def read(self, numbers: Int64s, out: NDArray[np.uint8]) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
        """Whole records into `out`: where each begins, and the status of each."""
        self.open_shards(numbers)
        return self._library.read(self.view, np.ascontiguousarray(numbers, np.int64), out)


def views(packs: list[NativePack]) -> "ctypes.Array[PackView]":
    """The views side by side, as the library takes them; they share addresses with the originals."""
    return (PackView * len(packs))(*(pack.view for pack in packs))
