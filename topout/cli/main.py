"""The command line: which verb is called, and how errors reach a person.

Data goes to stdout, talk to stderr. Loads the parser only when it is needed: `topout run` must start at once.
"""

from __future__ import annotations

import errno
import io
import os
import sys

from topout import __version__
from topout.launch.becoming import BecomeRank, run_rank
from topout.schema.errors import ExitCode, TopoutError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)


def main(arguments: list[str] | None = None) -> NoReturn:
    _open_standard_files()
    words: list[str] = []
    kept_fds: frozenset[int] = frozenset()
    try:
        sys.exit(call(sys.argv[1:] if arguments is None else arguments))
    except BecomeRank as rank:
        # in a child of the launcher; once this block is left, nothing of the launcher is
        words, kept_fds = rank.words, rank.kept_fds
    sys.exit(run_rank(words, kept_fds))


def _open_standard_files() -> None:
    """Where the shell has closed one (`topout … >&-`), the next file opened would take its number."""
    for fd, mode in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, mode), True)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 (as long as the process)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def call(arguments: list[str]) -> int:
    """Runs one verb and returns what the process tells the shell."""
    if arguments[:1] != ["run"]:
        # not where a script inherits it
        bear_any_character()
    try:
        result = _dispatch(arguments)
        sys.stdout.flush()
    except TopoutError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        return _leave_quietly(ExitCode.FINE)
    except SystemExit as leaving:
        # of rich, which prints help and has an exit code of its own for a reader that has gone
        if not isinstance(leaving.__context__, BrokenPipeError):
            raise
        return _leave_quietly(ExitCode.FINE)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            print(_no_room(error), file=sys.stderr)
            return _leave_quietly(ExitCode.ENVIRONMENT)
        import traceback

        traceback.print_exc()
        print(f"\nThis is a bug in topout {__version__}; please report the lines above.", file=sys.stderr)
        # as python does for an uncaught exception; 70 (EX_SOFTWARE) keeps it apart from findings
        return os.EX_SOFTWARE
    return result if isinstance(result, int) else 0


def bear_any_character() -> None:
    """A question mark on stdout in place of what its encoding does not have, unless the user wants it otherwise."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")


def _dispatch(arguments: list[str]) -> object:
    if arguments[:1] in (["pack"], ["data"]):
        # numpy's linear algebra is not used there, and its threads spin for a while after they are made
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if arguments[:1] == ["run"]:
        import gc

        from topout.cli.run_options import delimit_script, read_quickly

        # until the ranks have started: what a launcher loads stays, so looking for what does not is time lost
        gc.disable()

        options = read_quickly(arguments[1:])
        if options is not None:
            from topout.cli.training import train

            return train(options)
        arguments = ["run", *delimit_script(arguments[1:])]
    elif arguments[:1] == ["submit"]:
        from topout.cli.submit import arrange

        arguments = ["submit", *arrange(arguments[1:])]
    from topout.cli.app import call_verb

    return call_verb(arguments)


def _leave_quietly(code: ExitCode) -> int:
    """Whoever read our output has gone (`topout … | head`); Python must not complain when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return int(code)


def _no_room(error: OSError) -> TopoutError:
    return TopoutError(
        f"{error.filename or 'The output'} could not be written.",
        why=error.strerror or str(error),
        do="free space or quota there, or write elsewhere, and call topout again",
        exit_code=ExitCode.ENVIRONMENT,
    )
