"""What a file system refuses while a pack is written or unpacked, in words that are true of what was being done."""

import errno
from pathlib import Path

from topout.schema.errors import ExitCode, TopoutError

_AGAIN = {
    "packing": "then give the same command again: what is packed stays packed",
    "writing": "then write the pack again: a writer begins anew",
    "unpacking": "then give the same command again: what was written of it is removed",
    "repairing": "then give the same command again",
}
_SMALLER = {
    "packing": "choose a smaller --shard-size",
    "writing": "give PackWriter a smaller shard_bytes",
    "unpacking": "lift the limit, or choose another folder",
    "repairing": "lift the limit, or move the pack to another file system",
}
_WORDS = {
    errno.ENOSPC: ("the disk is full", "free some space, {again}"),
    errno.EDQUOT: ("your quota is used up", "free some space or ask for more, {again}"),
    errno.EFBIG: ("the file system or a limit (ulimit -f) allows no file that large", "{smaller}"),
    errno.EROFS: ("it lies on a file system mounted read-only", "choose another folder"),
    errno.EACCES: ("you may not write there", "choose another folder, or mend its permissions"),
    errno.EPERM: ("you may not write there", "choose another folder, or mend its permissions"),
    errno.ENOTDIR: ("a part of its path is a file", "choose another folder"),
    errno.EEXIST: ("a file of that name is there", "choose another folder"),
    errno.EIO: ("the device reports an error", "look at the system's log; the disk may be failing"),
    errno.ENAMETOOLONG: ("the path is too long", "choose a shorter one"),
}


def cannot_write(destination: Path, error: OSError, work: str = "packing") -> TopoutError:
    """`work` is packing (from the command line), writing (from Python), unpacking or repairing."""
    why, do = _WORDS.get(error.errno or 0, (error.strerror or str(error), "look at the folder: ls -ld"))
    return TopoutError(
        f"{destination} cannot be written.",
        why=why,
        do=do.format(again=_AGAIN[work], smaller=_SMALLER[work]),
        exit_code=ExitCode.ENVIRONMENT,
    )
