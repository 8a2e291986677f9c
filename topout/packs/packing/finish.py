"""From written records to a pack: footers, index, names, manifest, and then all of it in place.

Every step may be repeated, so a process killed here leaves nothing that its successor cannot finish.
"""

import base64
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from topout.packs.checksum import crc32c
from topout.packs.fields import Field
from topout.packs.layout import TRAILER_BYTES, FileKind, Header, Trailer, numbered
from topout.packs.manifest import (
    INDEX_NAME,
    NAMES_NAME,
    SKIPPED_NAME,
    FileEntry,
    Manifest,
    ShardEntry,
    SourceEntry,
    shard_name,
)  # fmt: skip
from topout.packs.names import decode_name, encode_names, sorted_order
from topout.packs.packing.begun import BegunPack, sync_folder, write_durably
from topout.packs.packing.shard_writer import ShardRows
from topout.packs.shard import encode_footer
from topout.packs.sources import BadEntry
from topout.schema.errors import TopoutError


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What the manifest says that its files do not."""

    pack_id: bytes
    fields: tuple[Field, ...]
    classes: tuple[str, ...] | None
    source: SourceEntry | None
    options: Mapping[str, Any]
    dictionaries: Mapping[str, bytes]


def finish(
    begun: BegunPack, contents: Contents, shards: Sequence[ShardRows], ranges: Sequence[tuple[int, int]]
) -> Manifest:
    """Puts the pack in place; `ranges` are the source's entries of each shard."""
    if not any(len(shard.rows) for shard in shards):
        raise TopoutError(
            "There is nothing to pack.", why="no sample is left", do="look at the source: topout data info SRC"
        )
    entries: list[ShardEntry] = []
    rows: list[NDArray[Any]] = []
    first = 0
    for number, (shard, span) in enumerate(zip(shards, ranges, strict=True)):
        rows.append(numbered(shard.rows, first))
        entries.append(_finish_shard(begun, number, shard, rows[-1], span))
        first += len(shard.rows)
    names = [name for shard in shards for name in shard.names]
    bad = [entry for shard in shards for entry in shard.bad]
    manifest = Manifest(
        pack_id=contents.pack_id.hex(),
        num_samples=len(names),
        fields=contents.fields,
        classes=contents.classes,
        index=write_index(begun.folder, contents.pack_id, rows),
        names=write_names(begun.folder, contents.pack_id, names),
        shards=tuple(entries),
        source=contents.source,
        options=dict(contents.options),
        num_skipped=len(bad),
        skipped=_write_skipped(begun.folder, bad) if bad else None,
        dictionaries={name: base64.b64encode(data).decode() for name, data in contents.dictionaries.items()},
    )
    sync_folder(begun.folder)
    write_durably(begun.manifest_path, [manifest.encode()])
    begun.publish(manifest)
    return manifest


def _write_skipped(folder: Path, bad: Sequence[BadEntry]) -> FileEntry:
    """JSON, an entry a line: names may hold anything, line ends too."""
    lines = b"".join(json.dumps(asdict(entry)).encode() + b"\n" for entry in bad)
    write_durably(folder / SKIPPED_NAME, [lines])
    return FileEntry(file=SKIPPED_NAME, size_bytes=len(lines), data_crc=crc32c(lines))


def write_index(folder: Path, pack_id: bytes, rows: Sequence[NDArray[Any]]) -> FileEntry:
    """All rows, one after another: what a reader maps."""
    header = Header(kind=FileKind.INDEX, pack_id=pack_id, number=0).encode()
    parts = [header, *(part.tobytes() for part in rows)]
    return _write_file(folder / INDEX_NAME, parts, b"", sum(map(len, rows)))


def write_names(folder: Path, pack_id: bytes, names: Sequence[bytes]) -> FileEntry:
    """Raises where two are the same."""
    order = sorted_order(names)
    for earlier, later in pairwise(order.tolist()):
        if names[earlier] == names[later]:
            raise duplicate_name(decode_name(names[earlier]), earlier, later)
    header = Header(kind=FileKind.NAMES, pack_id=pack_id, number=0).encode()
    return _write_file(folder / NAMES_NAME, [header, encode_names(names)], order.tobytes(), len(names))


def duplicate_name(name: str, earlier: int, later: int) -> TopoutError:
    return TopoutError(
        f"Two samples are called {name!r}.",
        why=f"entries {earlier} and {later} of the source have the same name; a name finds one sample",
        do="rename one of them, or give --on-error skip to leave the later one out",
    )


def shard_ending(shard: ShardRows, rows: NDArray[Any]) -> tuple[bytes, int]:
    """Footer and trailer of a shard, `rows` being its numbered rows; and the checksum of all before the trailer."""
    footer = encode_footer(rows, shard.names)
    trailer = Trailer(
        num_rows=len(rows),
        footer_offset=shard.data_bytes,
        footer_bytes=len(footer),
        footer_crc=crc32c(footer),
        data_crc=crc32c(footer, shard.data_crc),
    )
    return footer + trailer.encode(), trailer.data_crc


def append_ending(path: Path, shard: ShardRows, ending: bytes) -> None:
    """A torn ending of an earlier attempt is cut off first."""
    with open(path, "r+b") as file:
        file.truncate(shard.data_bytes)
        file.seek(shard.data_bytes)
        file.write(ending)
        file.flush()
        os.fsync(file.fileno())


def _finish_shard(
    begun: BegunPack, number: int, shard: ShardRows, rows: NDArray[Any], span: tuple[int, int]
) -> ShardEntry:
    file = shard_name(number)
    ending, data_crc = shard_ending(shard, rows)
    data = begun.data_path(number)
    # gone when an earlier attempt came as far as here
    if data.exists():
        append_ending(data, shard, ending)
        data.replace(begun.folder / file)
    return ShardEntry(
        file=file,
        size_bytes=shard.data_bytes + len(ending),
        data_crc=data_crc,
        num_samples=len(rows),
        source_start=span[0],
        source_stop=span[1],
    )


def _write_file(path: Path, parts: Sequence[bytes], footer: bytes, num_rows: int) -> FileEntry:
    crc, end = 0, 0
    for part in parts:
        crc = crc32c(part, crc)
        end += len(part)
    trailer = Trailer(
        num_rows=num_rows,
        footer_offset=end,
        footer_bytes=len(footer),
        footer_crc=crc32c(footer),
        data_crc=crc32c(footer, crc),
    )
    write_durably(path, [*parts, footer, trailer.encode()])
    size_bytes = end + len(footer) + TRAILER_BYTES
    return FileEntry(file=path.name, size_bytes=size_bytes, data_crc=trailer.data_crc)
