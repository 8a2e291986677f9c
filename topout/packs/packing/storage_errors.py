"""What a file system refuses while a pack is written, in words."""

import errno
from pathlib import Path

from topout.schema.errors import ExitCode, TopoutError

_WORDS = {
    errno.ENOSPC: (
        "the disk is full",
        "free some space, then give the same command again: what is packed stays packed",
    ),
    errno.EDQUOT: ("your quota is used up", "free some space or ask for more, then give the same command again"),
    errno.EFBIG: ("the file system or a limit (ulimit -f) allows no file that large", "choose a smaller --shard-size"),
    errno.EROFS: ("it lies on a file system mounted read-only", "choose another folder"),
    errno.EACCES: ("you may not write there", "choose another folder, or mend its permissions"),
    errno.EPERM: ("you may not write there", "choose another folder, or mend its permissions"),
    errno.ENOTDIR: ("a part of its path is a file", "choose another folder"),
    errno.EEXIST: ("a file of that name is there", "choose another folder"),
    errno.EIO: ("the device reports an error", "look at the system's log; the disk may be failing"),
    errno.ENAMETOOLONG: ("the path is too long", "choose a shorter one"),
}


def cannot_write(destination: Path, error: OSError) -> TopoutError:
    why, do = _WORDS.get(error.errno or 0, (error.strerror or str(error), "look at the folder: ls -ld"))
    return TopoutError(f"{destination} cannot be written.", why=why, do=do, exit_code=ExitCode.ENVIRONMENT)
