"""`topout pack`: many small files, or another format, into few large files that are read at the speed of the disk."""

import shlex
import sys
import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from topout.cli.packing_progress import PackingProgress
from topout.cli.sizes import bytes_text, parse_bytes
from topout.packs.packing.options import PackOptions
from topout.packs.packing.packer import PackReport
from topout.packs.packing.packer import pack as pack_listing
from topout.packs.sources import Listing, SourceOptions, open_source
from topout.schema.errors import ExitCode, TopoutError


def pack(
    src: Path,
    dst: Path,
    /,
    *,
    source: Annotated[str | None, Parameter(name="--from")] = None,
    columns: Annotated[list[str] | None, Parameter(negative="")] = None,
    shard_size: str = "256M",
    codec: Annotated[list[str] | None, Parameter(negative="")] = None,
    resize: int | None = None,
    max_side: int | None = None,
    quality: int | None = None,
    tile: int | None = None,
    upsample_bands: str | None = None,
    check_images: Annotated[bool, Parameter(negative="")] = False,
    workers: int | None = None,
    on_error: str = "stop",
    force: Annotated[bool, Parameter(negative="")] = False,
    quiet: Annotated[bool, Parameter(name=["--quiet", "-q"], negative="")] = False,
) -> int:
    """Pack a folder of files, or data of another format, into a few large files. Goes on after an interruption.

    Parameters
    ----------
    src
        What to pack: a folder (class folders become labels), or a file or folder of another format.
    dst
        Folder for the pack.
    source
        Kind of SRC where it is not told by looking: folder, tar, lmdb, tfrecord, hdf5, parquet, mds, numpy_files, pack.
    columns
        Fields to take of data that has several (HDF5, Parquet, a pack); may be repeated. Not for a folder of files.
    shard_size
        About how large the files become. Default: 256M.
    codec
        FIELD=NAME with raw, lz4, zstd or bitshuffle; may be repeated.
    resize
        Make the shorter side of larger images so many pixels.
    max_side
        Make the longer side of larger images so many pixels.
    quality
        Of JPEGs that are written anew, 1 to 100.
    tile
        Cut images or arrays into squares of so many pixels, each a sample.
    upsample_bands
        HxW: bring all arrays of a sample to one height and width and stack them as bands.
    check_images
        Decode every image whole; else only its header is read.
    workers
        Threads; one more than there are cores when left out, since one of them waits for the disk.
    on_error
        stop at an entry that cannot be packed, or skip it and list it in DST/skipped.txt. Default: stop.
    force
        Replace a pack, or a begun one, at DST.
    quiet
        Show no progress.
    """
    options = PackOptions(
        source=source,
        columns=tuple(columns) if columns else None,
        shard_bytes=parse_bytes(shard_size),
        codecs=parse_codecs(codec or []),
        resize=resize,
        max_side=max_side,
        quality=quality,
        tile=tile,
        upsample_bands=None if upsample_bands is None else parse_height_width(upsample_bands),
        check_images=check_images,
        num_workers=workers,
        on_error=on_error,
        is_replacing=force,
    )
    name, listing = open_source(src, source, SourceOptions(columns=options.columns, num_threads=max(8, workers or 0)))
    return pack_and_tell(listing, (name, src), dst, options, is_quiet=quiet)


def pack_and_tell(
    listing: Listing, source: tuple[str, Path], dst: Path, options: PackOptions, *, is_quiet: bool
) -> int:  # fmt: skip
    """Packs with a progress bar, and says what came of it."""
    for note in getattr(listing, "notes", ()):
        print(f"Note: {note}", file=sys.stderr)
    total_bytes = int(listing.sizes.sum())
    start = time.monotonic()
    try:
        with PackingProgress("packing", len(listing.names), total_bytes, is_quiet=is_quiet) as progress:
            report = pack_listing(listing, source, dst, options, progress=progress, say=_say)
    except KeyboardInterrupt:
        _say("Interrupted. What is packed stays packed: the same command goes on from there.")
        raise
    _tell(report, dst, total_bytes, time.monotonic() - start)
    return ExitCode.FINE


def parse_codecs(words: list[str]) -> dict[str, str]:
    """`image=raw` to {"image": "raw"}."""
    pairs = [word.partition("=") for word in words]
    for word, (field, _, name) in zip(words, pairs, strict=True):
        if not field or not name:
            raise TopoutError(f"--codec cannot be {word!r}.", why="it is FIELD=NAME", do="try --codec data=zstd")
    return {field: name for field, _, name in pairs}


def parse_height_width(text: str) -> tuple[int, int]:
    """`120x120`."""
    height, _, width = text.lower().partition("x")
    if not (height.isdigit() and width.isdigit() and int(height) and int(width)):
        raise TopoutError(f"--upsample-bands cannot be {text!r}.", why="it is HxW in pixels", do="try 120x120")
    return int(height), int(width)


def _tell(report: PackReport, dst: Path, total_bytes: int, taken_s: float) -> None:
    manifest = report.manifest
    shards = "1 shard" if len(manifest.shards) == 1 else f"{len(manifest.shards)} shards"
    if report.was_there:
        print(f"{dst} was packed before, from the same source with the same options: nothing to do.")
    else:
        rate = bytes_text(total_bytes / max(taken_s, 1e-9))
        print(f"{dst}: {manifest.num_samples:,} samples in {shards}, {taken_s:.1f} s, {rate}/s")
    if report.num_shards_kept and not report.was_there:
        print(f"{report.num_shards_kept} of them were finished before and not read again.", file=sys.stderr)
    if manifest.num_skipped:
        print(f"{manifest.num_skipped:,} entries were left out: {dst / 'skipped.txt'}", file=sys.stderr)
    print(f"\nNext    topout data info {shlex.quote(str(dst))}", file=sys.stderr)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
