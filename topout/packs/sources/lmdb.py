"""LMDB environments: one sample a key, in the order of the keys; read-only and without its lock file.

LMDB keeps no checksums, so a flipped byte in it is packed as it is. A file cut short is refused before it is mapped,
since touching the missing pages would kill the process. Keys such as `__len__` are not samples, pickles stay bytes.
"""

import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topout.packs.fields import Field, Sample
from topout.packs.foreign.columns import chosen_fields
from topout.packs.foreign.data_files import find_files, fingerprint
from topout.packs.foreign.field_table import read_table
from topout.packs.foreign.lmdb_keys import FIELDS_KEY, field_key, is_sample_key
from topout.packs.foreign.packages import require
from topout.packs.foreign.signature import HEAD_BYTES, only_field_name, shared_kind
from topout.packs.foreign.webdataset import value_of
from topout.packs.sources import BadEntry, Listed, SourceOptions
from topout.schema.errors import ExitCode, TopoutError
from topout.schema.plain_file import check_plain

_DATA_FILE = "data.mdb"
_NUM_LOOKED_AT = 64


def recognises(path: Path) -> bool:
    return (path / _DATA_FILE).is_file() or (path.is_file() and path.suffix.lower() in (".lmdb", ".mdb"))


def open_listing(path: Path, options: SourceOptions) -> "LmdbListing":
    file = path / _DATA_FILE if path.is_dir() else path
    environment = _shared_environment(file)
    with environment.reading() as transaction:
        told = transaction.get(FIELDS_KEY)
        names, sizes = _entries(transaction, is_ours=told is not None)
        if told is not None:
            fields, classes = read_table(bytes(told), str(path))
        else:
            fields, classes = (_only_field(transaction, names),), None
    files = find_files(file, lambda _: True)
    return LmdbListing(
        fields=chosen_fields(fields, options.columns),
        names=[name.decode("utf-8", "surrogateescape") for name in names],
        sizes=sizes,
        fingerprint=fingerprint(files),
        classes=classes,
        num_files=1,
        num_folders=1,
        environment=environment,
        first_field=fields[0].name,
        is_ours=told is not None,
    )


@dataclass(frozen=True, kw_only=True)
class LmdbListing(Listed):
    environment: "_Environment"
    first_field: str
    """Stored under the bare name."""
    is_ours: bool

    def read_range(self, start: int, stop: int) -> Iterator[Sample | BadEntry]:
        with self.environment.reading() as transaction:
            for number in range(start, stop):
                try:
                    yield self._sample(transaction, self.names[number])
                except ValueError as error:
                    yield BadEntry(number=number, name=self.names[number], reason=str(error))

    def _sample(self, transaction: Any, name: str) -> Sample:
        key = name.encode("utf-8", "surrogateescape")
        sample: Sample = {}
        for field in self.fields:
            value = transaction.get(key if field.name == self.first_field else field_key(key, field.name))
            if value is None:
                raise ValueError(f"its field {field.name!r} is missing")
            sample[field.name] = value_of(field, bytes(value)) if self.is_ours else bytes(value)
        return sample


class _Environment:
    """One open environment; LMDB allows no second one of the same file in a process."""

    def __init__(self, file: Path) -> None:
        self._lmdb = require("lmdb", what="Reading LMDB")
        self._file = file
        check_plain(file)
        try:
            self._opened = self._lmdb.open(
                str(file), subdir=False, readonly=True, lock=False, readahead=False, max_readers=1024, create=False
            )
        except (self._lmdb.Error, OSError) as error:
            raise _unreadable(file, str(error)) from error
        last_page, page_bytes = self._opened.info()["last_pgno"], self._opened.stat()["psize"]
        size_bytes, needed_bytes = file.stat().st_size, (last_page + 1) * page_bytes
        if size_bytes < needed_bytes:
            self._opened.close()
            raise _unreadable(file, f"it has {size_bytes} bytes and needs {needed_bytes}: it was cut off")
        weakref.finalize(self, self._opened.close)

    @contextmanager
    def reading(self) -> Iterator[Any]:
        """A transaction; what LMDB meets in damaged pages while it lasts is said as the file's."""
        try:
            with self._opened.begin(buffers=True) as transaction:
                yield transaction
        except self._lmdb.Error as error:
            raise _unreadable(self._file, str(error)) from error


_opened: "weakref.WeakValueDictionary[Path, _Environment]" = weakref.WeakValueDictionary()
_opening = threading.Lock()


def _shared_environment(file: Path) -> _Environment:
    with _opening:
        environment = _opened.get(file.resolve())
        if environment is None:
            _opened[file.resolve()] = environment = _Environment(file)
        return environment


def _entries(transaction: Any, *, is_ours: bool) -> tuple[list[bytes], NDArray[np.int64]]:
    names: list[bytes] = []
    sizes: list[int] = []
    for key, value in transaction.cursor():
        name = bytes(key)
        if is_sample_key(name, is_ours=is_ours):
            names.append(name)
            sizes.append(len(value))
        elif names and name.startswith(names[-1] + b"\0"):
            # a further field: in the order of the keys these follow their sample
            sizes[-1] += len(value)
    return names, np.array(sizes, np.int64)


def _only_field(transaction: Any, names: Sequence[bytes]) -> Field:
    step = max(1, len(names) // _NUM_LOOKED_AT)
    kind = shared_kind(bytes(transaction.get(name)[:HEAD_BYTES]) for name in names[::step])
    return Field(name=only_field_name(kind), kind=kind)


def _unreadable(file: Path, why: str) -> TopoutError:
    return TopoutError(
        f"{file} cannot be read as LMDB.",
        why=why,
        do="check the file with mdb_stat, or write it again",
        exit_code=ExitCode.ENVIRONMENT,
    )
