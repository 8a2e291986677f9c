"""Python's own functions for files, answering for packed paths first.

Each takes what the real one takes, and hands on what no pack knows. Everything in the standard library that opens or
looks by path (`os.path`, `glob`, `pathlib`, `shutil`) comes through these, and through those of `listings`. Not for
readers written in C: see `c_readers`. Audit events are raised as the real functions raise them, so the recorder counts
packed files, too.
"""

import errno
import os
import sys
from collections.abc import Callable
from typing import Any

from topout.feed.serve.mounts import Mounts
from topout.feed.serve.packed_file import READING, PackedFile, is_plain_reading, layered, memory_file

Function = Callable[..., Any]
_NOT_READING = (
    os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_PATH", 0) | getattr(os, "O_TMPFILE", 0)
)  # fmt: skip
_CHANGING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def error(number: int, path: Any) -> OSError:
    return OSError(number, os.strerror(number), path)


def interposed_open(mounts: Mounts, real: Function) -> Function:
    """For `builtins.open` and `io.open`."""

    def open(  # noqa: PLR0917 (as the real one)
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        # another opener has its own idea of where a file is; a binary file with an encoding is an error to be raised
        is_ours = is_plain_reading(mode) and opener is None and closefd and type(buffering) is int
        if is_ours and ("b" not in mode or encoding is errors is newline is None):
            found = mounts.find(file)
            if found is not None:
                if found.number is None:
                    raise error(errno.EISDIR, file)
                sys.audit("open", file, mode, READING)
                raw = PackedFile(found.mount.files.read(found.number, file), file)
                return layered(raw, mode, buffering, encoding=encoding, errors=errors, newline=newline)
        elif isinstance(mode, str) and not {"w", "a", "x", "+"}.isdisjoint(mode):
            opened = real(file, mode, buffering, encoding, errors, newline, closefd, opener)
            mounts.note_change(file)
            return opened
        return real(file, mode, buffering, encoding, errors, newline, closefd, opener)

    return open


def interposed_os_open(mounts: Mounts, real: Function) -> Function:
    def open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if dir_fd is None and not flags & _NOT_READING:
            found = mounts.find(path)
            if found is not None and found.number is not None:
                sys.audit("open", path, None, flags)
                return memory_file(found.mount.files.read(found.number, path), os.fsdecode(path))
        opened: int = real(path, flags, mode, dir_fd=dir_fd)
        if dir_fd is None and flags & _CHANGING:
            mounts.note_change(path)
        return opened

    return open


def interposed_stat(mounts: Mounts, real: Function) -> Function:
    def stat(path: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> os.stat_result:
        found = mounts.find(path) if dir_fd is None else None
        if found is not None and found.number is not None:
            return found.file_status()
        try:
            # a folder that is there speaks for itself: it may be a link
            seen: os.stat_result = real(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)
        except FileNotFoundError:
            instead = mounts.folder_status(path) if dir_fd is None else None
            if instead is None:
                raise
            return instead
        return seen

    return stat


def interposed_lstat(mounts: Mounts, real: Function) -> Function:
    look = interposed_stat(mounts, lambda path, *, dir_fd, follow_symlinks: real(path, dir_fd=dir_fd))

    def lstat(path: Any, *, dir_fd: int | None = None) -> os.stat_result:
        found: os.stat_result = look(path, dir_fd=dir_fd)
        return found

    return lstat


def interposed_access(mounts: Mounts, real: Function) -> Function:
    def access(
        path: Any, mode: int, *, dir_fd: int | None = None, effective_ids: bool = False, follow_symlinks: bool = True
    ) -> bool:
        if dir_fd is None and not mode & os.W_OK:
            found = mounts.find(path)
            if found is not None and found.number is not None:
                return not mode & os.X_OK
        if real(path, mode, dir_fd=dir_fd, effective_ids=effective_ids, follow_symlinks=follow_symlinks):
            return True
        # a folder that is there and may not be looked into stays so
        may_be_packed = dir_fd is None and not mode & os.W_OK and not real(path, os.F_OK, follow_symlinks=False)
        return may_be_packed and mounts.folder_status(path) is not None

    return access


def interposed_listxattr(mounts: Mounts, real: Function) -> Function:
    """`shutil` asks for them when it copies; packs keep none."""

    def listxattr(path: Any = None, *, follow_symlinks: bool = True) -> list[str]:
        names: list[str] = []
        if path is None or mounts.find(path) is None:
            names = real(path, follow_symlinks=follow_symlinks)
        return names

    return listxattr


def interposed_mkdir(mounts: Mounts, real: Function) -> Function:
    def mkdir(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        if dir_fd is None and (mounts.find(path) is not None or mounts.above(path)):
            raise error(errno.EEXIST, path)
        real(path, mode, dir_fd=dir_fd)

    return mkdir


def interposed_change(mounts: Mounts, real: Function, paths: slice) -> Function:
    """For functions after which a name means something else; `paths` are their arguments that are such names."""

    def change(*args: Any, **kwargs: Any) -> Any:
        done = real(*args, **kwargs)
        # relative to a folder's descriptor, names say nothing here
        if not any(isinstance(value, int) for name, value in kwargs.items() if name.endswith("dir_fd")):
            for path in (*args[paths], *(kwargs[name] for name in ("path", "src", "dst") if name in kwargs)):
                mounts.note_change(path)
        return done

    return change
