"""The command line: verbs by name, loaded when called, and how errors reach a person.

Data goes to stdout, talk to stderr. Not for logic of a verb; each has its own file.
"""

import os
import sys
import traceback
from difflib import get_close_matches
from typing import NoReturn

from cyclopts import App, CycloptsError, Parameter, UnknownCommandError

from topout import __version__
from topout.schema.errors import ExitCode, TopoutError

app = App(
    name="topout",
    help="Find out why training scales badly, mend it, and know how many nodes are worth asking for.",
    help_epilogue="Start with: topout run train.py",
    version=__version__,
    print_error=False,
    exit_on_error=False,
    result_action="return_value",
    suppress_keyboard_interrupt=False,
    help_format="plaintext",
    default_parameter=Parameter(show_default=False),
)
# literal help, so that `topout --help` imports no verb
app.command(
    "topout.cli.run:run",
    name="run",
    help="Run a training script on every GPU or core, record and explain it.",
    usage="Usage: topout run [OPTIONS] [SCRIPT [ARGS...]]",
    sort_key=1,
)
app.command("topout.cli.watch:watch", name="watch", help="Watch a running job, all ranks in one pane.", sort_key=2)
app.command("topout.cli.analyze:analyze", name="analyze", help="Say what holds a recorded run back.", sort_key=3)
app.command("topout.cli.compare:compare", name="compare", help="Say whether run B is faster than run A.", sort_key=4)
app.command("topout.cli.explain:explain", name="explain", help="Explain a finding by its code.", sort_key=5)


def main(arguments: list[str] | None = None) -> NoReturn:
    sys.exit(call(sys.argv[1:] if arguments is None else arguments))


def call(arguments: list[str]) -> int:
    """Runs one verb and returns what the process tells the shell."""
    try:
        result = app(_prepared(arguments))
        sys.stdout.flush()
    except TopoutError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    except CycloptsError as error:
        print(_usage_error(error, arguments), file=sys.stderr)
        return int(ExitCode.USAGE)
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        return _leave_quietly()
    except Exception:
        traceback.print_exc()
        print(f"\nThis is a bug in topout {__version__}; please report the lines above.", file=sys.stderr)
        # as python does for an uncaught exception; 70 (EX_SOFTWARE) keeps it apart from findings
        return os.EX_SOFTWARE
    return result if isinstance(result, int) else 0


def _prepared(arguments: list[str]) -> list[str]:
    if arguments[:1] != ["run"]:
        return arguments
    from topout.cli.run import delimit_script

    return ["run", *delimit_script(arguments[1:])]


def _usage_error(error: CycloptsError, arguments: list[str]) -> TopoutError:
    verbs = [name for name in app if not name.startswith("-")]
    if isinstance(error, UnknownCommandError):
        # cyclopts would import every verb to word this
        near = get_close_matches(arguments[0], verbs, n=1)
        return TopoutError(
            f"There is no verb {arguments[0]!r}.",
            why=f"topout has {', '.join(verbs)}",
            do=f"did you mean topout {near[0]}?" if near else "topout --help",
        )
    verb = f" {arguments[0]}" if arguments and arguments[0] in verbs else ""
    return TopoutError(
        " ".join(str(error).split()), why="these words do not fit the options", do=f"topout{verb} --help"
    )  # fmt: skip


def _leave_quietly() -> int:
    """Whoever read our output has gone (`topout … | head`); Python must not complain when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return int(ExitCode.FINE)
