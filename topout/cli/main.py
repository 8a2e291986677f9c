"""The command line: which verb is called, and how errors reach a person.

Data goes to stdout, talk to stderr. Loads the parser only when it is needed: `topout run` must start at once.
"""

from __future__ import annotations

import gc
import os
import sys

from topout import __version__
from topout.launch import start_code

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def main(arguments: list[str] | None = None) -> NoReturn:
    _open_standard_files()
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] == ["run"]:
        # until the ranks have started: what a launcher loads stays, so looking for what does not is time lost
        gc.disable()
        start_code.use()
    # out of that file
    from topout.launch.becoming import BecomeRank, run_rank

    words: list[str] = []
    kept_fds: frozenset[int] = frozenset()
    try:
        sys.exit(call(given))
    except BecomeRank as rank:
        # in a child of the launcher; once this block is left, no code of the launcher is run
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
    # not above, where it would come before the file out of which `main` has it loaded
    from topout.schema.errors import ExitCode, TopoutError

    if arguments[:1] != ["run"]:
        # not where a script inherits it
        from topout.cli.streams import bear_any_character, bear_lost_talk

        bear_lost_talk()
        bear_any_character()
    code = int(ExitCode.FINE)
    try:
        result = _dispatch(arguments)
        code = result if isinstance(result, int) else code
        sys.stdout.flush()
    except TopoutError as error:
        _tell(str(error))
        return int(error.exit_code)
    except KeyboardInterrupt as error:
        number = getattr(error, "number", None)
        return int(ExitCode.INTERRUPTED) if number is None else 128 + number
    except BrokenPipeError:
        return _without_reader(code)
    except SystemExit as leaving:
        # of rich, which prints help and has an exit code of its own for a reader that has gone
        if not isinstance(leaving.__context__, BrokenPipeError):
            raise
        return _without_reader(code)
    except Exception as error:
        return _unforeseen(error)
    return code


def _without_reader(code: int) -> int:
    """Whoever read our output has gone: `topout … | head`. A verb that had ended has its own code."""
    from topout.cli.streams import silence

    silence(1)
    return code


def _unforeseen(error: Exception) -> int:
    from topout.cli.streams import NO_ROOM, no_room, silence
    from topout.schema.errors import ExitCode, TopoutError

    if isinstance(error, OSError) and error.errno in NO_ROOM:
        _tell(str(no_room(error)))
        silence(1)
        return int(ExitCode.ENVIRONMENT)
    if isinstance(error, FileNotFoundError) and _is_folder_gone():
        gone = TopoutError(
            "The current folder is gone.",
            why="it was removed after this shell had entered it",
            do='cd to one that is there; where it was made anew: cd "$PWD"',
            exit_code=ExitCode.ENVIRONMENT,
        )
        _tell(str(gone))
        return int(gone.exit_code)
    import traceback

    told = "".join(traceback.format_exception(error))
    _tell(f"{told}\nThis is a bug in topout {__version__}; please report the lines above.")
    # as python does for an uncaught exception; 70 (EX_SOFTWARE) keeps it apart from findings
    return os.EX_SOFTWARE


def _is_folder_gone() -> bool:
    try:
        os.getcwd()  # noqa: PTH109
    except FileNotFoundError:
        return True
    return False


def _tell(text: str) -> None:
    """Where stderr takes nothing, the exit code says it alone."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        from topout.cli.streams import silence

        silence(2)


def _dispatch(arguments: list[str]) -> object:
    if arguments[:1] in (["pack"], ["data"]):
        # numpy's linear algebra is not used there, and its threads spin for a while after they are made
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if arguments[:1] == ["run"]:
        from topout.cli.run_options import delimit_script, read_quickly

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

    # not known, as some terminals have it; rich would take it for a width
    if os.environ.get("COLUMNS") == "0":
        del os.environ["COLUMNS"]
    return call_verb(arguments)
