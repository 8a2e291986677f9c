"""Looks at packs before a job starts: `python -m topout.feed.serve.check DIR|ROOT=PACK…` says in JSON what was found.

Opens every pack and reads none of its samples; `topout data check` does that. Whether the folder has changed since is
not asked here but by the first rank: under srun this runs once for every task.
"""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from topout.feed.serve.orders import Order, split_order
from topout.feed.serve.packed_bytes import NamesOfPack, file_field
from topout.feed.serve.tree import Tree
from topout.packs.manifest import MANIFEST_NAME
from topout.packs.pack import Pack, open_pack
from topout.schema.errors import TopoutError

_MOST_WALKED = 100_000
"""Names in a pack whose folders are counted; that takes a tenth of a second."""


def look(texts: Sequence[str]) -> tuple[list[Order], list[str]]:
    """Root and pack of each, and notes."""
    orders: list[Order] = []
    notes: list[str] = []
    for root, path in (order for text in texts for order in _packs_of(text)):
        with open_pack(path) as pack:
            file_field(pack)
            place = os.path.abspath(root or _source_of(pack))  # noqa: PTH100 (links are kept, as the script has them)
            for shard in pack.shards:
                shard.open()
                shard.rest()
            if pack.manifest.changes:
                done = ", ".join(f"{name} {value}" for name, value in pack.manifest.changes.items())
                notes.append(f"{path} does not hold the files as they were: packed with {done}")
            if not Path(place).is_dir():
                notes += _missing(pack, place)
        orders.append((place, str(path)))
    _refuse_doubles(orders)
    return orders, notes


def _missing(pack: Pack, root: str) -> Iterator[str]:
    """What the folder had and the pack has not; now that the folder is gone nobody has it."""
    source = pack.manifest.source
    if source is None:
        return
    if source.num_files > len(pack) and not pack.manifest.changes:
        yield f"{root} is gone, and {source.num_files - len(pack)} of its files are not in {pack.path}"
    if len(pack) <= _MOST_WALKED:
        num_empty = source.num_folders - _num_folders(Tree(NamesOfPack(pack)))
        if num_empty > 0:
            yield f"{root} is gone, and {num_empty} of its folders held nothing that was packed"


def _num_folders(tree: Tree, path: bytes = b"") -> int:
    below = (path + b"/" + name if path else name for name, is_folder in tree.children(path) if is_folder)
    return 1 + sum(_num_folders(tree, folder) for folder in below)


def _packs_of(text: str) -> Iterator[tuple[str | None, Path]]:
    root, name = split_order(text)
    path = Path(name).absolute()
    if root is not None or (path / MANIFEST_NAME).is_file() or not path.is_dir():
        yield root, path
        return
    packs = sorted(child.parent for child in path.glob(f"*/{MANIFEST_NAME}"))
    if not packs:
        # says in its three parts that this is no pack
        yield None, path
    for pack in packs:
        yield None, pack


def _source_of(pack: Pack) -> str:
    source = pack.manifest.source
    if source is None or source.plugin != "folder":
        made_from = "Python objects" if source is None else f"{source.plugin}, not from a folder of files"
        raise TopoutError(
            f"{pack.path} does not say which folder it stands in for.",
            why=f"it was made from {made_from}",
            do=f"say it: --packs ROOT={pack.path}",
        )
    return source.path


def _refuse_doubles(orders: Sequence[Order]) -> None:
    packs: dict[str, str] = {}
    for root, pack in orders:
        if root in packs:
            raise TopoutError(
                f"Two packs stand in for {root}.",
                why=f"{packs[root]} and {pack} were both made from it",
                do=f"name one: --packs {pack}",
            )
        packs[root] = pack


def main(texts: Sequence[str]) -> None:
    try:
        orders, notes = look(texts)
        said: dict[str, object] = {"packs": orders, "notes": notes}
    except TopoutError as error:
        said = {"problem": error.problem, "why": error.why, "do": error.do, "exit_code": int(error.exit_code)}
    sys.stdout.write(json.dumps(said))


if __name__ == "__main__":
    main(sys.argv[1:])
