"""Readers written in C, which open paths behind Python's back: they are handed a path that leads to the packed bytes.

`/proc/self/fd/7` is a path like any other to `fopen`, and 7 a memory file with the file's bytes; so the reader itself
decides, as before, what they mean. Only functions named here, and only for packed files. Not for readers that keep the
path, or look at how it ends.
"""

import functools
import os
from pathlib import Path
from types import ModuleType
from typing import Any

from topout.feed.serve.mounts import Mounts
from topout.feed.serve.packed_file import memory_file
from topout.record.imports import call_after_import

READERS: dict[str, dict[str, str]] = {
    "cv2": {"imread": "filename", "imreadmulti": "filename", "imcount": "filename"},
    "torchvision.io.image": {"read_file": "path"},
    "soundfile": {"read": "file", "info": "file"},
}
"""Module -> functions that read a file whole, and how they name its path, which is their first argument."""


def install(mounts: Mounts) -> None:
    if not Path("/proc/self/fd").is_dir():
        return

    def tap(module: ModuleType, names: dict[str, str]) -> None:
        for name, argument in names.items():
            real = getattr(module, name, None)
            if real is not None:
                setattr(module, name, served(mounts, real, argument))

    call_after_import({name: [functools.partial(tap, names=names)] for name, names in READERS.items()})


def served(mounts: Mounts, real: Any, argument: str) -> Any:
    @functools.wraps(real)
    def read(*args: Any, **kwargs: Any) -> Any:
        path: Any = args[0] if args else kwargs.get(argument)
        found = mounts.find(path) if isinstance(path, str | os.PathLike) else None
        if found is None or found.number is None:
            return real(*args, **kwargs)
        fd = memory_file(found.mount.files.read(found.number, path), os.fsdecode(path))
        instead = f"/proc/self/fd/{fd}"
        try:
            return real(instead, *args[1:], **kwargs) if args else real(**{**kwargs, argument: instead})
        finally:
            os.close(fd)

    return read
