"""`topout data`: look at a source or a pack, check and mend it, pack it again, take it apart, time it."""

import json as json_text
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
from cyclopts import Parameter

from topout.cli.packing_progress import PackingProgress
from topout.cli.sizes import bytes_text, parse_bytes
from topout.cli.streams import even_unread
from topout.packs.check import CheckReport, Damage, check_pack
from topout.packs.fields import Value
from topout.packs.given_path import nothing_at
from topout.packs.manifest import MANIFEST_NAME, read_manifest
from topout.packs.pack import open_pack
from topout.schema.errors import ExitCode, TopoutError

if TYPE_CHECKING:
    from topout.packs.source_comparison import Comparison

_MOST_SHOWN = 20
Json = Annotated[bool, Parameter(negative="")]


def info(path: Path, /, *, source: Annotated[str | None, Parameter(name="--from")] = None, json: Json = False) -> int:
    """Print files, folders, total and size distribution of a source or a pack.

    Parameters
    ----------
    path
        A pack, or anything that can be packed.
    source
        Kind of source where it is not told by looking.
    json
        Print it as JSON.
    """
    from topout.packs.info import describe

    found = describe(path, source)
    if json:
        print(json_text.dumps(asdict(found), indent=2))
        return ExitCode.FINE
    from topout.cli.data_info import render

    print(render(found))
    if not found.num_samples:
        print("\nThere is nothing to pack there.", file=sys.stderr)
        return ExitCode.FINE
    named = shlex.quote(str(path))
    is_pack = found.format == "pack"
    print(f"\nNext    {f'topout data check {named}' if is_pack else f'topout pack {named} DST'}", file=sys.stderr)
    return ExitCode.FINE


def check(
    path: Path,
    /,
    *,
    repair: Annotated[bool, Parameter(negative="")] = False,
    source: Path | None = None,
    json: Json = False,
) -> int:
    """Verify every byte of a pack and name what is damaged; exits with 1 when damage or a difference remains.

    Parameters
    ----------
    path
        A pack.
    repair
        Write damaged files again: the index from the shards, shards from the source.
    source
        Compare the pack with every entry that lies there now; with --repair, what to repair from if the source moved.
    json
        Print what was found as JSON.
    """
    if source is not None and not source.exists():
        raise nothing_at(source)
    found = check_pack(path, num_threads=len(os.sched_getaffinity(0)))
    if repair and found.damages and found.files != {MANIFEST_NAME}:
        from topout.packs.repair import repair_files

        _print_damage(found.damages, sys.stderr.write)
        repair_files(path, read_manifest(path), found.files, source)
        print(f"{', '.join(sorted(found.files))} written again.", file=sys.stderr)
        found = check_pack(path, num_threads=len(os.sched_getaffinity(0)))
    if found.damages and source is not None and not repair:
        print(f"It was not compared with {source}: only a whole pack is.", file=sys.stderr)
    compared = None if source is None or repair or found.damages else _compared(path, source)
    with even_unread():
        if json:
            told = {**asdict(found), "comparison": None if compared is None else asdict(compared)}
            print(json_text.dumps(told, indent=2))
        else:
            _print_check(path, found, compared)
    named = shlex.quote(str(path))
    if found.damages:
        is_lost = MANIFEST_NAME in found.files
        mend = f"topout pack SRC {named} --force   (pack.json cannot be mended)"
        print(f"\nNext    {mend if is_lost else f'topout data check {named} --repair'}", file=sys.stderr)
        return ExitCode.FINDINGS
    if compared is not None and compared.differences:
        print(f"\nNext    topout pack {shlex.quote(str(source))} {named} --force", file=sys.stderr)
        return ExitCode.FINDINGS
    return ExitCode.FINE


def head(path: Path, /, *, num: Annotated[int, Parameter(name=["--num", "-n"])] = 5) -> int:
    """Print the first samples of a pack, field by field.

    Parameters
    ----------
    path
        A pack.
    num
        How many. Default: 5.
    """
    if num < 1:
        raise TopoutError(f"--num cannot be {num}.", why="it is how many samples to print", do="try -n 5")
    with open_pack(path) as pack:
        for number in range(min(num, len(pack))):
            print(f"{number}  {pack.name(number)!r}")
            for name, value in pack.sample(number).items():
                print(f"    {name:<12} {value_text(value)}")
    return ExitCode.FINE


def convert(
    src: Path,
    dst: Path,
    /,
    *,
    codec: Annotated[list[str] | None, Parameter(negative="")] = None,
    shard_size: str = "256M",
    workers: int | None = None,
    force: Annotated[bool, Parameter(negative="")] = False,
    quiet: Annotated[bool, Parameter(name=["--quiet", "-q"], negative="")] = False,
) -> int:
    """Pack a pack again, with other codecs or another shard size.

    Parameters
    ----------
    src
        A pack.
    dst
        Folder for the new one.
    codec
        FIELD=NAME with raw, lz4, zstd or bitshuffle; may be repeated.
    shard_size
        About how large the files become. Default: 256M.
    workers
        Threads; one more than there are cores when left out, since one of them waits for the disk.
    force
        Replace a pack, or a begun one, at DST.
    quiet
        Show no progress.
    """
    from topout.cli.pack import pack_and_tell, parse_codecs
    from topout.packs.packing.options import PackOptions
    from topout.packs.sources import open_source

    read_manifest(src)
    options = PackOptions(
        source="pack",
        shard_bytes=parse_bytes(shard_size),
        codecs=parse_codecs(codec or []),
        num_workers=workers,
        is_replacing=force,
    )
    name, listing = open_source(src, "pack")
    return pack_and_tell(listing, (name, src), dst, options, is_quiet=quiet)


def bench(path: Path, /, *, seconds: float = 2.0, json: Json = False) -> int:
    """Time reading a pack on this machine: raw, verified in order, verified at random, fixed arrays gathered.

    Parameters
    ----------
    path
        A pack.
    seconds
        For each way of reading. Default: 2.
    json
        Print the rates as JSON.
    """
    if not 0 < seconds < inf:
        raise TopoutError(f"--seconds {seconds:g} is no time.", why="it is a finite number above 0", do="--seconds 2")
    from topout.packs.reading_rates import reading_rates

    with open_pack(path) as pack:
        rates = reading_rates(pack, seconds)
    if json:
        print(json_text.dumps([asdict(rate) for rate in rates], indent=2))
        return ExitCode.FINE
    for rate in rates:
        print(f"{rate.what:<36} {rate.samples_per_s:>12,.0f} samples/s  {bytes_text(rate.bytes_per_s):>9}/s")
    return ExitCode.FINE


def unpack(
    path: Path,
    dst: Path,
    /,
    *,
    to: str = "folder",
    quiet: Annotated[bool, Parameter(name=["--quiet", "-q"], negative="")] = False,
) -> int:
    """Write the samples of a pack as files, or in another format.

    Parameters
    ----------
    path
        A pack.
    dst
        Where to write; must not be there yet, or be empty.
    to
        folder, webdataset, lmdb, tfrecord or hdf5. Default: folder.
    quiet
        Show no progress.
    """
    from topout.packs.packing.storage_errors import cannot_write
    from topout.packs.targets import unpack as unpack_to

    if dst.is_file() or (dst.is_dir() and any(dst.iterdir())):
        raise TopoutError(f"{dst} is there already.", why="nothing is written over", do="choose another place")
    with open_pack(path) as pack:
        num_bytes = sum(entry.size_bytes for entry in pack.manifest.shards)
        with PackingProgress("unpacking", len(pack), num_bytes, is_quiet=quiet) as progress:
            try:
                unpack_to(pack, dst, to, progress)
            except OSError as error:
                raise cannot_write(dst, error, "unpacking") from error
        print(f"{dst}: {len(pack):,} samples as {to}")
    return ExitCode.FINE


def value_text(value: Value) -> str:
    """One line about a value, as short as it can be told."""
    if isinstance(value, bytes):
        return f"{len(value):,} bytes, {value[:12].hex(' ')}{' …' if len(value) > 12 else ''}"
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape}" + (f", {value.min()} to {value.max()}" if value.size else "")
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:99]}…"


def _compared(path: Path, source: Path) -> "Comparison":
    from topout.packs.source_comparison import compare_with_source

    packed = read_manifest(path).source
    num_entries, num_bytes = (0, 0) if packed is None else (packed.num_entries, packed.total_bytes)
    with PackingProgress("comparing", num_entries, num_bytes) as progress:
        return compare_with_source(path, source, progress, num_threads=len(os.sched_getaffinity(0)))


def _print_check(path: Path, found: CheckReport, compared: "Comparison | None") -> None:
    if found.damages:
        _print_damage(found.damages, sys.stdout.write)
    else:
        print(f"{path} is whole: {found.num_samples:,} samples, {bytes_text(found.num_bytes)}.")
    if compared is not None:
        from topout.cli.data_comparison import render

        print(render(str(path), compared))


def _print_damage(damages: Sequence[Damage], write: Callable[[str], object]) -> None:
    for damage in damages[:_MOST_SHOWN]:
        sample = "" if damage.number is None else f"  sample {damage.number}"
        name = "" if damage.name is None else f" ({damage.name!r})"
        write(f"{damage.file}{sample}{name}: {damage.why}\n")
    if len(damages) > _MOST_SHOWN:
        write(f"… and {len(damages) - _MOST_SHOWN:,} more\n")
