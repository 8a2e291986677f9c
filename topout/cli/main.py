"""The command line: which verb is called, and how errors reach a person.

Data goes to stdout, talk to stderr. Loads the parser only when it is needed: `topout run` must start at once.
"""

from __future__ import annotations

import os
import sys

from topout import __version__
from topout.launch.becoming import BecomeRank, run_rank
from topout.schema.errors import ExitCode, TopoutError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


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
        from topout.cli.streams import bear_any_character

        bear_any_character()
    try:
        result = _dispatch(arguments)
        sys.stdout.flush()
    except TopoutError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    except KeyboardInterrupt as error:
        number = getattr(error, "number", None)
        return int(ExitCode.INTERRUPTED) if number is None else 128 + number
    except BrokenPipeError:
        return _without_reader()
    except SystemExit as leaving:
        # of rich, which prints help and has an exit code of its own for a reader that has gone
        if not isinstance(leaving.__context__, BrokenPipeError):
            raise
        return _without_reader()
    except Exception as error:
        from topout.cli.streams import NO_ROOM, no_room, silence

        if isinstance(error, OSError) and error.errno in NO_ROOM:
            print(no_room(error), file=sys.stderr)
            silence(1)
            return int(ExitCode.ENVIRONMENT)
        import traceback

        traceback.print_exc()
        print(f"\nThis is a bug in topout {__version__}; please report the lines above.", file=sys.stderr)
        # as python does for an uncaught exception; 70 (EX_SOFTWARE) keeps it apart from findings
        return os.EX_SOFTWARE
    return result if isinstance(result, int) else 0


def _without_reader() -> int:
    """Whoever read our output has gone: `topout … | head`."""
    from topout.cli.streams import silence

    silence(1)
    return int(ExitCode.FINE)


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
    elif arguments[:1] == ["scale"]:
        from topout.cli import scale_words

        arguments = ["scale", *scale_words.delimit_script(arguments[1:])]
    from topout.cli.app import call_verb

    return call_verb(arguments)
