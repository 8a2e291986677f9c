"""A damaged pack made whole again: rows from the copy in the shard's footer, records from the source.

What is read again counts only if it has the checksum the pack remembers, so a source that has changed repairs nothing
and is said so. Not for a damaged pack.json: packing the source again writes it.
"""

import shlex
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topout.packs.checksum import crc32c
from topout.packs.damage import DamagedPack
from topout.packs.layout import numbered, row_crc, row_dtype
from topout.packs.manifest import FileEntry, Manifest, read_manifest
from topout.packs.pack import Found, Pack
from topout.packs.packing.begun import BegunPack, begun_already, sync_folder
from topout.packs.packing.finish import append_ending, shard_ending, write_index, write_names
from topout.packs.packing.options import PackOptions
from topout.packs.packing.shard_maker import ShardMaker
from topout.packs.packing.storage_errors import cannot_write
from topout.packs.shard import ShardFile
from topout.packs.sources import Listing, SourceOptions, open_source
from topout.schema.errors import ExitCode, TopoutError


def reread(pack: Pack, number: int) -> Found:
    """A damaged sample's row and record, for the reader that met it; the pack on disk stays as it is."""
    rows: list[np.void] = [pack.index[number]]
    shard = pack.shards[pack.shard_of(number)]
    try:
        rows.append(shard.footer(pack.row_dtype).rows[number - pack.starts[shard.number]])
        return rows[1], pack.verified(number, rows[1])
    except DamagedPack:
        pass
    maker, entries = _source_of(pack.path, None)
    name = pack.name(number)
    # tiles are called after their entry, with the corner behind a colon
    entry = entries.get(name, entries.get(name.rpartition(":")[0]))
    try:
        found = [] if entry is None else maker.records(entry)
    except (ValueError, OSError):
        found = []
    for called, parts, _, _ in found:
        record = b"".join(parts)
        for row in rows:
            if called == name and row_crc(crc32c(record), row.tobytes(), number) == int(row["crc"]):
                return row, memoryview(record)
    raise pack.damaged(number, "its bytes are damaged, and the source does not have them any more")


def repair_files(path: Path, manifest: Manifest, damaged: set[str], source: Path | None) -> None:
    """Writes the named files again, each whole and atomically. Raises where that cannot be done."""
    try:
        begun = BegunPack(path)
    except OSError as error:
        raise cannot_write(path, error, "repairing") from error
    if begun.can_go_on:
        begun.close()
        raise begun_already(begun, f"drop it and repair: rm -r {shlex.quote(str(begun.folder))}")
    try:
        begun.clear()
        for number, entry in enumerate(manifest.shards):
            if entry.file in damaged:
                _rewrite_shard(begun, manifest, number, source)
        if {manifest.index.file, manifest.names.file} & damaged:
            _rewrite_index(begun, manifest)
        if manifest.skipped is not None and manifest.skipped.file in damaged:
            raise TopoutError(
                f"{path / manifest.skipped.file} cannot be repaired.",
                why="it lists what was left out, which no other file knows",
                do="pack the source again with --force",
            )
    except OSError as error:
        raise cannot_write(path, error, "repairing") from error
    finally:
        begun.remove()


def _rewrite_shard(begun: BegunPack, manifest: Manifest, number: int, source: Path | None) -> None:
    entry = manifest.shards[number]
    maker, _ = _source_of(begun.destination, source)
    if entry.source_stop > maker.num_entries:
        raise _changed(begun, entry)
    target = begun.data_path(number)
    shard = maker.write(target, number, (entry.source_start, entry.source_stop))
    first = sum(earlier.num_samples for earlier in manifest.shards[:number])
    ending, data_crc = shard_ending(shard, numbered(shard.rows, first))
    append_ending(target, shard, ending)
    _replace(begun, target, entry, data_crc)


def _rewrite_index(begun: BegunPack, manifest: Manifest) -> None:
    """Index and names from the copies that every shard carries."""
    pack_id = bytes.fromhex(manifest.pack_id)
    rows: list[NDArray[Any]] = []
    names: list[bytes] = []
    for number, entry in enumerate(manifest.shards):
        shard = ShardFile(begun.destination, begun.destination / entry.file, entry, pack_id, number)
        footer = shard.footer(row_dtype(manifest.fields))
        shard.close()
        rows.append(footer.rows)
        names += footer.names
    written = {
        manifest.index: write_index(begun.folder, pack_id, rows),
        manifest.names: write_names(begun.folder, pack_id, names),
    }
    for listed, again in written.items():
        _replace(begun, begun.folder / listed.file, listed, again.data_crc)


def _replace(begun: BegunPack, written: Path, entry: FileEntry, data_crc: int) -> None:
    if (written.stat().st_size, data_crc) != (entry.size_bytes, entry.data_crc):
        raise _changed(begun, entry)
    written.replace(begun.destination / entry.file)
    sync_folder(begun.destination)


def _changed(begun: BegunPack, entry: FileEntry) -> TopoutError:
    return TopoutError(
        f"{begun.destination / entry.file} cannot be repaired.",
        why="the source does not give the same bytes any more: it has changed since it was packed",
        do=f"name the right one with --source, or pack it again: topout pack SRC {begun.destination} --force",
        exit_code=ExitCode.ENVIRONMENT,
    )


@lru_cache(maxsize=2)
def _source_of(path: Path, source: Path | None) -> tuple[ShardMaker, Mapping[str, int]]:
    """What makes records from the pack's source, and which entry has which name."""
    manifest = read_manifest(path)
    if manifest.source is None:
        raise TopoutError(
            f"{path} has no source to repair it from.",
            why="it was written from Python, not from files",
            do="write it again",
            exit_code=ExitCode.ENVIRONMENT,
        )
    try:
        maker, listing = maker_for(manifest, source or Path(manifest.source.path))
    except TopoutError as error:
        raise TopoutError(
            f"The source of {path} cannot be read.",
            why=error.why,
            do=f"topout data check {path} --repair --source SRC",
            exit_code=ExitCode.ENVIRONMENT,
        ) from error
    return maker, {name: number for number, name in enumerate(listing.names)}


def maker_for(manifest: Manifest, source: Path) -> tuple[ShardMaker, Listing]:
    """What makes the pack's records again from what lies at `source`, and the listing of that."""
    assert manifest.source is not None
    options = options_of(manifest)
    try:
        _, listing = open_source(source, manifest.source.plugin, SourceOptions(columns=options.columns))
        maker = ShardMaker(
            listing,
            options,
            fields=manifest.fields,
            dictionaries=manifest.dictionary_bytes(),
            pack_id=bytes.fromhex(manifest.pack_id),
        )
    except TopoutError as error:
        # the advice within is for packing; here kind and options are those of the pack
        raise TopoutError(
            f"{source} cannot be read as what the pack was made from.",
            why=f"{error.problem.rstrip('.')}: {error.why}",
            do="name the right one with --source",
            exit_code=error.exit_code,
        ) from error
    return maker, listing


def options_of(manifest: Manifest) -> PackOptions:
    """Those the pack was made with; what was skipped then is skipped again."""
    changes: dict[str, Any] = dict(manifest.options)
    # where nothing was skipped, no image need be decoded to know which were
    changes["check_images"] = "check_images" in changes and manifest.num_skipped > 0
    # older packs do not say which images were changed: it was the first
    changes["images"] = changes.get("images", [field.name for field in manifest.fields if field.is_image][:1])
    for name in {"columns", "images"} & changes.keys():
        changes[name] = tuple(changes[name])
    if "upsample_bands" in changes:
        height, width = changes["upsample_bands"]
        changes["upsample_bands"] = (height, width)
    return PackOptions(**changes, on_error="skip")
