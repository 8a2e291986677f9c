"""What is done where output cannot go as it should: an encoding without the character, a reader gone, a full disk."""

import codecs
import errno
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from topout.schema.errors import ExitCode, TopoutError

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)


_Instead = tuple[str | bytes, int]
_Handler = Callable[[UnicodeError], _Instead]
_PLAIN = dict.fromkeys("█▉▊▋▌▍▎▏", "#") | {"–": "-", "…": "...", "’": "'", "·": "|", "×": "x", "µ": "u"}
"""Signs of our own pages, and what an encoding without them has instead."""


def bear_any_character() -> None:
    """Signs that an encoding does not have are written plainly, unless the user wants it otherwise.

    In place of any other character stdout, which has columns, gets a question mark, and stderr its number.
    """
    # in the C locale stdout has the second, which knows the bytes of a file's name and no character
    of_stdout = ("strict", "surrogateescape")
    streams = ((sys.stdout, of_stdout, "replace"), (sys.stderr, ("backslashreplace",), "backslashreplace"))
    for stream, usual, otherwise in streams:
        if isinstance(stream, io.TextIOWrapper) and (errors := stream.errors or "strict") in usual:
            name = f"topout-{errors}-{otherwise}"
            own, other = codecs.lookup_error(errors), codecs.lookup_error(otherwise)
            codecs.register_error(name, partial(_plainly, own, other))
            stream.reconfigure(errors=name)


def _plainly(own: _Handler, otherwise: _Handler, error: UnicodeError) -> _Instead:
    if isinstance(error, UnicodeEncodeError):
        if sign := _PLAIN.get(error.object[error.start]):
            return sign, error.start + 1
        # one at a time: the next may be of another kind
        error.end = error.start + 1
    try:
        return own(error)
    except UnicodeError:
        return otherwise(error)


class _Talk(io.FileIO):
    """What cannot be written is lost."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def bear_lost_talk() -> None:
    """A verb ends as it would have ended, also where stderr has no reader or no room: data is not written there."""
    stream = sys.stderr
    if isinstance(stream, io.TextIOWrapper) and stream is sys.__stderr__:
        file = _Talk(stream.fileno(), "w", closefd=False)
        sys.stderr = io.TextIOWrapper(
            file if isinstance(stream.buffer, io.RawIOBase) else io.BufferedWriter(file),
            encoding=stream.encoding,
            errors=stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )


@contextmanager
def even_unread() -> Iterator[None]:
    """Around what a verb prints of what it found: its exit code says that also where the reader has gone."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        silence(1)


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
