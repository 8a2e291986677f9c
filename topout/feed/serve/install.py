"""Puts packs in the place of folders, in this process and in those it starts.

In place before the script's first line and never taken away. What was imported before keeps the functions it took for
itself; of the standard library only `glob` does, from Python 3.13 on. Nothing happens without orders.
"""

import atexit
import builtins
import io
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from topout.feed.serve import c_readers, interposed, listings, workers
from topout.feed.serve.mounts import Mount, Mounts
from topout.feed.serve.orders import Order, orders_in
from topout.feed.serve.packed_bytes import NamesOfPack, PackedBytes
from topout.feed.serve.source_check import refuse_changed_source
from topout.feed.serve.tree import Tree
from topout.packs.pack import open_pack

_CHANGING = {
    **dict.fromkeys(("remove", "unlink", "rmdir", "truncate"), slice(0, 1)),
    **dict.fromkeys(("rename", "replace"), slice(0, 2)),
    **dict.fromkeys(("link", "symlink"), slice(1, 2)),
}
"""Functions of `os` after which a name means something else, and which of their arguments are such names."""
_is_installed = False


def install() -> None:
    """For a rank: what its environment asks for. Raises TopoutError for a pack that cannot be opened."""
    mounts = _install_in_process()
    if mounts is not None and os.environ.get("RANK", "0") == "0":
        atexit.register(_say_when_unused, mounts, os.getpid())


def install_in_worker() -> None:
    """For a process that a rank spawned; the rank has checked the packs already."""
    _install_in_process(is_rank=False)


def open_mounts(orders: Sequence[Order], *, checks_source: bool) -> Mounts:
    mounts = []
    for place, (root, path) in enumerate(orders):
        pack = open_pack(path)
        tree = Tree(NamesOfPack(pack))
        if checks_source:
            refuse_changed_source(pack, root)
        mounts.append(Mount(root, PackedBytes(pack), tree, place))
    return Mounts(mounts)


def replace_functions(mounts: Mounts) -> None:
    open_ = interposed.interposed_open(mounts, builtins.open)
    builtins.open = io.open = _as_if(builtins.open, open_, "io")
    stat = _replace(os, "stat", partial(interposed.interposed_stat, mounts))
    _replace(os, "scandir", partial(listings.interposed_scandir, mounts, look=stat))
    _replace(os, "listdir", partial(listings.interposed_listdir, mounts))
    for name in ("lstat", "access", "mkdir", *(["listxattr"] if hasattr(os, "listxattr") else [])):
        _replace(os, name, partial(getattr(interposed, f"interposed_{name}"), mounts))
    _replace(os, "open", partial(interposed.interposed_os_open, mounts))
    for name, paths in _CHANGING.items():
        _replace(os, name, partial(interposed.interposed_change, mounts, paths=paths))
    globber = getattr(sys.modules.get("glob"), "_StringGlobber", None)
    if globber is not None:
        globber.lstat, globber.scandir = staticmethod(os.lstat), staticmethod(os.scandir)


def _install_in_process(*, is_rank: bool = True) -> Mounts | None:
    global _is_installed
    orders = orders_in(os.environ)
    if not orders or _is_installed:
        return None
    _is_installed = True
    is_first = is_rank and os.environ.get("RANK", "0") == "0"
    mounts = open_mounts(orders, checks_source=is_first)
    replace_functions(mounts)
    c_readers.install(mounts)
    workers.install()
    return mounts


def _replace(module: Any, name: str, make: Callable[[Any], Any]) -> Any:
    real = getattr(module, name)
    ours = _as_if(real, make(real), module.__name__)
    setattr(module, name, ours)
    # who asks whether a function takes a file number must hear the same as before
    for supports in (os.supports_fd, os.supports_dir_fd, os.supports_follow_symlinks, os.supports_effective_ids):
        if real in supports:
            supports.add(ours)
    return ours


def _as_if(real: Any, ours: Any, module: str) -> Any:
    """Bears the real one's name, and the module where it is found: a dataset that holds `open` is sent by that name."""
    ours.__name__ = ours.__qualname__ = real.__name__
    ours.__doc__, ours.__module__ = real.__doc__, module
    return ours


def _say_when_unused(mounts: Mounts, pid: int) -> None:
    """In the rank alone, not in workers forked from it."""
    # a spawned worker's use is not seen here
    if os.getpid() == pid and not mounts.was_used() and not workers.has_carried():
        roots = ", ".join(mounts.roots())
        sys.stderr.write(
            f"topout: --packs served nothing; the script asked for no path under {roots}. "
            "If it reads the same files elsewhere, say where: --packs ROOT=PACK\n"
        )
