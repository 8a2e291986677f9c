"""An LMDB environment: a sample's first field under its name, further fields under the name, a NUL and the field.

    n01/a.jpg -> the JPEG      n01/a.jpg\\0label -> 3      \\0topout-fields -> names and kinds of the fields, as JSON

Numbers and text are written as text, arrays as .npy. LMDB keeps no checksums: a byte that flips in it stays unnoticed.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from topout.packs.foreign.arrival import arriving_folder
from topout.packs.foreign.field_table import write_table
from topout.packs.foreign.lmdb_keys import FIELDS_KEY, LONGEST_KEY_BYTES, field_key
from topout.packs.foreign.pack_samples import named_samples
from topout.packs.foreign.packages import require
from topout.packs.foreign.webdataset import bytes_of
from topout.packs.pack import Pack
from topout.packs.targets import Progress
from topout.schema.errors import ExitCode, TopoutError

_TRANSACTION_BYTES = 64 << 20
_SPARE_BYTES = 64 << 20
_PAGE_BYTES = 4096


def write(pack: Pack, destination: Path, progress: Progress) -> None:
    lmdb = require("lmdb", what="Writing LMDB")
    with arriving_folder(destination) as folder:
        # the map grows as needed: its size is address space, not disk
        environment = lmdb.open(str(folder), map_size=_SPARE_BYTES, sync=False, lock=False)
        try:
            batch: list[tuple[bytes, bytes]] = [(FIELDS_KEY, write_table(pack.fields, pack.manifest.classes).encode())]
            batch_bytes = 0
            for pairs, num_bytes in _entries(pack):
                batch += pairs
                batch_bytes += sum(len(value) + _PAGE_BYTES for _, value in pairs)
                if batch_bytes > _TRANSACTION_BYTES:
                    _put(lmdb, environment, batch)
                    batch, batch_bytes = [], 0
                progress.add(1, num_bytes)
            _put(lmdb, environment, batch)
            environment.sync(True)
        except lmdb.Error as error:
            raise TopoutError(
                f"{destination} cannot be written.",
                why=str(error),
                do="check the space left on the disk",
                exit_code=ExitCode.ENVIRONMENT,
            ) from error
        finally:
            environment.close()


def _entries(pack: Pack) -> Iterator[tuple[list[tuple[bytes, bytes]], int]]:
    first, *others = pack.fields
    for name, sample, num_bytes in named_samples(pack):
        key = name.encode("utf-8", "surrogateescape")
        pairs = [(key, bytes_of(first, sample[first.name]))]
        pairs += [(field_key(key, field.name), bytes_of(field, sample[field.name])) for field in others]
        _check_key(name, key, max(len(each) for each, _ in pairs))
        yield pairs, num_bytes


def _put(lmdb: Any, environment: Any, batch: list[tuple[bytes, bytes]]) -> None:
    while True:
        try:
            with environment.begin(write=True) as transaction:
                for key, value in batch:
                    transaction.put(key, value)
            return
        except lmdb.MapFullError:
            environment.set_mapsize(2 * environment.info()["map_size"])


def _check_key(name: str, key: bytes, longest_bytes: int) -> None:
    if b"\0" not in key and key and longest_bytes <= LONGEST_KEY_BYTES:
        return
    raise TopoutError(
        f"{name!r} cannot be a key of LMDB.",
        why=f"keys have 1 to {LONGEST_KEY_BYTES} bytes and, here, no NUL within a name",
        do="choose another target, such as webdataset",
    )
