"""Whether a folder has changed since it was packed, as far as can be told without walking through it.

A job trained from packs must be the job trained from the folder. A small folder is listed and compared whole; of a
large one, whose listing takes minutes on a parallel file system, the sizes of a few files are. Not a proof for large
folders: `topout data check PACK --source ROOT` is.
"""

import os
from pathlib import Path

from topout.feed.serve.packed_bytes import PackedBytes
from topout.packs.pack import Pack
from topout.schema.errors import TopoutError

LARGEST_LISTED = 4096
"""Files of a folder that is compared whole; a stat of each takes a tenth of a second at most on a local disk."""
NUM_LOOKED_AT = 64


def refuse_changed_source(pack: Pack, root: str) -> None:
    """Raises where the folder is there and differs; a folder that is gone is what packs are for."""
    if not Path(root).is_dir() or pack.manifest.changes or not len(pack):
        return
    change = _first_change(pack, root)
    if change is not None:
        raise TopoutError(
            f"{root} has changed since {pack.path} was made from it.",
            why=change,
            do=f"pack it again: topout pack --force {root} {pack.path}, or move the folder away to train from the pack",
        )


def _first_change(pack: Pack, root: str) -> str | None:
    files = PackedBytes(pack)
    num_looks = len(pack) if len(pack) <= LARGEST_LISTED else NUM_LOOKED_AT
    for look in range(num_looks):
        number = look * (len(pack) - 1) // max(1, num_looks - 1)
        name = pack.name(number)
        try:
            size_bytes = os.stat(os.path.join(root, name)).st_size  # noqa: PTH116, PTH118 (names may be odd)
        except FileNotFoundError:
            return f"{name!r} is gone"
        except OSError:
            continue
        if size_bytes != files.size(number):
            return f"{name!r} has {size_bytes} bytes, {files.size(number)} in the pack"
    return _another_fingerprint(pack, root)


def _another_fingerprint(pack: Pack, root: str) -> str | None:
    """Names, sizes and times of change at once, of the folder that was packed; a copy has other times."""
    source = pack.manifest.source
    is_original = (
        source is not None and source.plugin == "folder" and os.path.realpath(source.path) == os.path.realpath(root)
    )
    if source is None or not is_original or source.num_entries > LARGEST_LISTED:
        return None
    from topout.packs.sources import open_source

    _, listing = open_source(Path(root), source.plugin)
    if listing.fingerprint == source.fingerprint:
        return None
    return "files were added, removed or written"
