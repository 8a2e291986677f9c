"""Files out of a pack: the bytes of a sample, its size, and names in sorted order.

A file is the one field of a sample that holds bytes; numbers beside it (a class's) are not part of it. Packs without
such a field, or with several, cannot stand in for files.
"""

import errno
import os
from typing import Any

from topout.packs.layout import HEADER_BYTES
from topout.packs.pack import Pack
from topout.schema.errors import TopoutError

FILE_KINDS = ("bytes", "jpeg", "png")


class PackedBytes:
    """Reads whole files; any number of threads and forked processes may."""

    def __init__(self, pack: Pack) -> None:
        self._pack = pack
        self._field = file_field(pack)
        layout = pack.layout
        field = next(field for field in layout.variable if field.name == self._field)
        self._is_raw = field.codec == "raw"
        # with nothing else of varying length in the record, its end is the file's
        self._start = layout.variable_offset if self._is_raw and len(layout.variable) == 1 else None
        self._lengths = pack.index["length"]
        self.time_ns = (pack.path / "pack.json").stat().st_mtime_ns

    def read(self, number: int, path: Any) -> bytes:
        """Damage reaches the script as a bad disk would: an OSError about the path it asked for."""
        try:
            if self._start is not None:
                return bytes(self._pack.record(number)[self._start :])
            return self._decoded(number)
        except TopoutError as error:
            reason = f"{os.strerror(errno.EIO)} ({error.problem} {error.why}; do: {error.do})"
            raise OSError(errno.EIO, reason, path) from None

    def size(self, number: int) -> int:
        if self._start is not None:
            return int(self._lengths[number]) - self._start
        try:
            return len(self._pack.field_bytes(number, self._field)) if self._is_raw else len(self._decoded(number))
        except TopoutError:
            # reading it says so; a file on a bad disk still has a size
            return 0

    def _decoded(self, number: int) -> bytes:
        value = self._pack.sample(number)[self._field]
        return bytes(value)


class NamesOfPack:
    """`tree.SortedNames` over the mapped names.bin, without a Python object for each name."""

    def __init__(self, pack: Pack) -> None:
        file = pack.names_file
        file.verify()
        num_names = len(pack)
        text = HEADER_BYTES + 8 * (num_names + 1)
        self._offsets = file.view[HEADER_BYTES:text].cast("Q")
        self._text = file.view[text:]
        start = file.trailer.footer_offset
        self._order = file.view[start : start + 4 * num_names].cast("I")

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, place: int) -> bytes:
        number = self._order[place]
        return self._text[self._offsets[number] : self._offsets[number + 1]].tobytes()

    def number(self, place: int) -> int:
        return self._order[place]


def file_field(pack: Pack) -> str:
    found = [field.name for field in pack.fields if field.kind in FILE_KINDS]
    if len(found) != 1:
        raise TopoutError(
            f"{pack.path} cannot stand in for a folder of files.",
            why=f"its samples have {'several fields' if found else 'no field'} that could be the file: "
            f"{', '.join(found) or ', '.join(f'{field.name} ({field.kind})' for field in pack.fields)}",
            do="pack the folder that the script reads: topout pack FOLDER PACK",
        )
    return found[0]
