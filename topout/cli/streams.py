"""What is done where output cannot go as it should: an encoding without the character, a reader gone, a full disk."""

import errno
import io
import os
import sys

from topout.schema.errors import ExitCode, TopoutError

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)


def bear_any_character() -> None:
    """A question mark on stdout in place of what its encoding does not have, unless the user wants it otherwise."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")


def silence(fd: int) -> None:
    """From here on what is written there is lost, and Python does not complain when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), fd)


def no_room(error: OSError) -> TopoutError:
    return TopoutError(
        f"{error.filename or 'The output'} could not be written.",
        why=error.strerror or str(error),
        do="free space or quota there, or write elsewhere, and call topout again",
        exit_code=ExitCode.ENVIRONMENT,
    )
