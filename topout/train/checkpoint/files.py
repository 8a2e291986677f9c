"""Files of a checkpoint on the disk: written with their checksum, flushed, and put in place by a rename.

Large ones go past the page cache where the file system allows it: that costs the training's cores nothing, while a
copy into the cache would cost as much as the staging did.
"""

import errno
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from topout.packs.checksum import crc32c

_CHUNK_BYTES = 8 << 20
_DIRECT_FROM_BYTES = 1 << 20
_PAGE_BYTES = 4096


@dataclass(frozen=True)
class Written:
    num_bytes: int
    crc32c: int


def write_image(path: Path, image: memoryview) -> Written:
    """Both the checksum and the write leave the GIL to the training."""
    is_direct = len(image) >= _DIRECT_FROM_BYTES and len(image) % _PAGE_BYTES == 0
    fd = _opened(path, is_direct=is_direct)
    try:
        value = 0
        for start in range(0, len(image), _CHUNK_BYTES):
            chunk = image[start : start + _CHUNK_BYTES]
            value = crc32c(chunk, value)
            _write_all(fd, chunk, start)
        os.fsync(fd)
    finally:
        os.close(fd)
    return Written(len(image), value)


def write_small(path: Path, data: bytes) -> Written:
    """Appears under its name whole or not at all."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    with unfinished.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    return Written(len(data), crc32c(data))


def flush_folder(folder: Path) -> None:
    """Makes the names in it survive a power cut."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        # some network file systems have no such call for folders
        with suppress(OSError):
            os.fsync(fd)
    finally:
        os.close(fd)


def checksum(path: Path) -> Written:
    """Of what lies there now."""
    value = num_bytes = 0
    buffer = bytearray(_CHUNK_BYTES)
    with path.open("rb", buffering=0) as file:
        while got := file.readinto(buffer):
            value = crc32c(memoryview(buffer)[:got], value)
            num_bytes += got
    return Written(num_bytes, value)


def is_seen(path: Path) -> bool:
    """Whether it is there; where it is not, as the server has it now, since NFS keeps in mind which names were not."""
    if _is_there(path):
        return True
    for folder in path.parents:
        with suppress(OSError):
            # a folder's names are asked for anew when it is opened
            os.close(os.open(folder, os.O_RDONLY | os.O_DIRECTORY))
            break
    return _is_there(path)


def _is_there(path: Path) -> bool:
    try:
        path.stat()
    except OSError:
        return False
    return True


def _opened(path: Path, *, is_direct: bool) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    direct = getattr(os, "O_DIRECT", 0) if is_direct else 0
    try:
        return os.open(path, flags | direct, 0o666)
    except OSError as error:
        if not direct or error.errno != errno.EINVAL:
            raise
        return os.open(path, flags, 0o666)


def _write_all(fd: int, data: memoryview, at: int) -> None:
    while data:
        try:
            done = os.pwrite(fd, data, at)
        except OSError as error:
            if error.errno != errno.EINVAL or not _leave_direct(fd):
                raise
            continue
        data, at = data[done:], at + done


def _leave_direct(fd: int) -> bool:
    """Some file systems admit direct writing when a file is opened and refuse it then; False if that was not it."""
    import fcntl

    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    direct = getattr(os, "O_DIRECT", 0)
    if not flags & direct:
        return False
    fcntl.fcntl(fd, fcntl.F_SETFL, flags & ~direct)
    return True
