"""What is done where output cannot go as it should: an encoding without the character, a reader gone, a full disk."""

import codecs
import errno
import io
import os
import sys
from collections.abc import Callable
from functools import partial

from topout.schema.errors import ExitCode, TopoutError

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)


_Instead = tuple[str | bytes, int]
_PLAIN = dict.fromkeys("█▉▊▋▌▍▎▏", "#") | {"–": "-", "…": "...", "’": "'", "·": "|", "×": "x", "µ": "u"}
"""Signs of our own pages, and what an encoding without them has instead."""


def bear_any_character() -> None:
    """Signs that an encoding does not have are written plainly, unless the user wants it otherwise.

    In place of any other character stdout, which has columns, gets a question mark, and stderr its number.
    """
    streams = ((sys.stdout, "strict", "replace"), (sys.stderr, "backslashreplace", "backslashreplace"))
    for stream, usual, otherwise in streams:
        if isinstance(stream, io.TextIOWrapper) and stream.errors == usual:
            name = f"topout-{otherwise}"
            codecs.register_error(name, partial(_plainly, codecs.lookup_error(otherwise)))
            stream.reconfigure(errors=name)


def _plainly(otherwise: Callable[[UnicodeError], _Instead], error: UnicodeError) -> _Instead:
    if isinstance(error, UnicodeEncodeError) and (sign := _PLAIN.get(error.object[error.start])):
        return sign, error.start + 1
    return otherwise(error)


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
