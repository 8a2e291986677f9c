"""The verbs by name, loaded when called, and how a mistake in their words is explained.

Literal help, so that `topout --help` imports no verb. Not for logic of a verb; each has its own file.
"""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from functools import reduce
from inspect import getdoc
from itertools import pairwise, takewhile
from typing import Any

from cyclopts import (
    App,
    Argument,
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    Parameter,
    Token,
    UnknownCommandError,
    UnusedCliTokensError,
    convert,
)

from topout import __version__
from topout.cli.run_options import OPTIONS
from topout.schema.errors import TopoutError

_OF_RUNS = (" run", " submit")
_NUMBERS: dict[Any, str] = {int: "a whole number", float: "a number"}


class EmptyWordError(CoercionError):
    """An empty word where a name, a path or a number is meant."""


def convert_exactly(kind: type, tokens: Sequence[Token]) -> Any:
    """As cyclopts does, which would round 1.5 where a whole number is meant, and take '' for this folder."""
    for token in tokens:
        if not token.value.strip():
            raise EmptyWordError(token=token, target_type=kind)
        if kind is int and "." in token.value:
            raise CoercionError(token=token, target_type=int)
    return convert(kind, tokens)


DEFAULTS = Parameter(show_default=False, converter=convert_exactly)
"""Of every parameter of every verb."""

AS_TYPED = Parameter(converter=convert)
"""Of words that are handed on, which may be empty."""

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
    default_parameter=DEFAULTS,
)
app.command(
    "topout.cli.run:run",
    name="run",
    help="Run a training script on every GPU or core, record and explain it.",
    usage="Usage: topout run [OPTIONS] [SCRIPT [ARGS...]]",
    sort_key=1,
)
app.command(
    "topout.cli.watch:watch",
    name="watch",
    help="Watch a running job, all ranks in one pane.",
    usage="Usage: topout watch [OPTIONS] [RUN]",
    sort_key=2,
)
app.command(
    "topout.cli.analyze:analyze",
    name="analyze",
    help="Say what holds a recorded run back.",
    usage="Usage: topout analyze [OPTIONS] [RUN]",
    sort_key=3,
)
app.command("topout.cli.compare:compare", name="compare", help="Say whether run B is faster than run A.", sort_key=4)
app.command(
    "topout.cli.explain:explain",
    name="explain",
    help="Explain a finding by its code.",
    usage="Usage: topout explain [OPTIONS] [CODE]",
    sort_key=5,
)
app.command(
    "topout.cli.submit:submit",
    name="submit",
    help="Write a job script for this site's scheduler and submit it.",
    usage="Usage: topout submit [OPTIONS] [SCRIPT [ARGS...]]",
    sort_key=6,
)
app.command("topout.cli.doctor:doctor", name="doctor", help="Check whether this machine or job is fit.", sort_key=7)
app.command(
    "topout.cli.hardware:hardware",
    name="hardware",
    help="Show what devices can do at most.",
    usage="Usage: topout hardware [OPTIONS] [NAME]",
    sort_key=8,
)
app.command(
    "topout.cli.scale:scale",
    name="scale",
    help="Run a script on several numbers of ranks and say how it scales.",
    usage="Usage: topout scale [OPTIONS] SCRIPT [ARGS...] | RUN...",
    sort_key=11,
)
app.command(
    "topout.cli.calibrate:calibrate",
    name="calibrate",
    help="Describe a recorded job for simulate and plan.",
    usage="Usage: topout calibrate [OPTIONS] [RUN]",
    sort_key=12,
)
app.command(
    "topout.cli.simulate:simulate",
    name="simulate",
    help="Predict a job on another number of nodes.",
    usage="Usage: topout simulate JOB --system SYSTEM [OPTIONS]",
    sort_key=13,
)
app.command(
    "topout.cli.plan:plan",
    name="plan",
    help="Say how many nodes are worth asking for.",
    usage="Usage: topout plan JOB --system SYSTEM (--samples N | --target-loss LOSS) [OPTIONS]",
    sort_key=14,
)
app.command(
    "topout.cli.reproduce:reproduce",
    name="reproduce",
    help="Compute published scaling tables again.",
    usage="Usage: topout reproduce [--json] [TABLE...]",
    sort_key=15,
)
app.command(
    "topout.cli.pack:pack", name="pack", help="Pack many small files into few that read at full speed.", sort_key=9
)
data = App(name="data", help="Look at, check, mend, convert and unpack packs.", help_epilogue="", sort_key=10)
data.command("topout.cli.data:info", name="info", help="Say how many files, how large, of what fields.", sort_key=1)
data.command("topout.cli.data:check", name="check", help="Verify a pack; repair or compare it.", sort_key=2)
data.command("topout.cli.data:head", name="head", help="Show the first samples of a pack.", sort_key=3)
data.command("topout.cli.data:convert", name="convert", help="Pack a pack again with other codecs.", sort_key=4)
data.command("topout.cli.data:bench", name="bench", help="Time reading a pack on this machine.", sort_key=5)
data.command("topout.cli.data:unpack", name="unpack", help="Write a pack as files or another format.", sort_key=6)
app.command(data)


def call_verb(arguments: list[str]) -> object:
    """Raises TopoutError for words that do not fit."""
    if {"-h", "--help"}.intersection(takewhile(lambda word: word != "--", arguments)):
        _tell_whole(arguments)
    try:
        return app(arguments)
    except MissingArgumentError as error:
        joined = _with_negative(arguments, error.keyword)
        if joined is None:
            raise _usage_error(error, arguments) from error
    except CycloptsError as error:
        raise _usage_error(error, arguments) from error
    return call_verb(joined)


def _tell_whole(arguments: list[str]) -> None:
    """Help of one verb begins with its whole docstring; the line that the list of verbs has is the first of it."""
    verb = _verb_of(arguments)
    command = reduce(App.__getitem__, verb, app)
    if verb:
        # the list of verbs says what to start with; who asks for one has started
        command.help_epilogue = ""
    if verb and command.default_command is not None:
        text = (getdoc(command.default_command) or "").partition("\nParameters\n")[0]
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n"))


def _verb_of(arguments: list[str]) -> list[str]:
    """The words that name the verb; of `data` they are two."""
    if arguments[:1] == ["data"] and arguments[1:2] and arguments[1] in _names(data):
        return arguments[:2]
    return [word for word in arguments[:1] if word in _names(app)]


def _with_negative(arguments: list[str], option: str | None) -> list[str] | None:
    """`--time -2h` as `--time=-2h`: the parser takes -2h for an option, the verb says what is wrong with it."""
    for number, word in enumerate(arguments[:-1]):
        if word == option and re.match(r"-[\d.]", arguments[number + 1]):
            return [*arguments[:number], f"{word}={arguments[number + 1]}", *arguments[number + 2 :]]
    return None


def _usage_error(error: CycloptsError, arguments: list[str]) -> TopoutError:
    verbs = _names(app)
    if isinstance(error, UnknownCommandError):
        # cyclopts would import every verb to word this
        if arguments[:1] == ["data"] and len(arguments) > 1:
            return _unknown_verb("topout data", arguments[1], _names(data))
        return _unknown_verb("topout", arguments[0], verbs)
    verb = "".join(f" {word}" for word in _verb_of(arguments))
    taken = _script_taken(arguments[1:]) if verb in _OF_RUNS else None
    if taken is not None and not isinstance(error, CoercionError):
        option, script = taken
        return TopoutError(
            f"{option} has {script} for its value.",
            why=_meaning(verb, option),
            do=f"topout{verb} {option} VALUE {script}; topout{verb} --help",
        )
    if type(error) is MissingArgumentError and error.argument is not None:
        # its sentence goes on where a word looks like the one that is missing
        _, _, suggestion = " ".join(str(error).split()).partition(" requires an argument.")
        name = error.keyword or error.argument.name
        problem = f"topout{verb} needs {name}." if error.keyword is None else f"{name} needs a value."
        return TopoutError(problem + suggestion, why=_meaning(verb, error.argument.name), do=f"topout{verb} --help")
    if isinstance(error, EmptyWordError) and error.token is not None and error.argument is not None:
        return _empty_word(verb, error.token.keyword or error.argument.name, error.argument)
    if (
        isinstance(error, CoercionError)
        and error.target_type in _NUMBERS
        and error.token is not None
        and error.argument
    ):
        name = error.token.keyword or error.argument.name
        problem = f"{name} {error.token.value} is not {_NUMBERS[error.target_type]}."
        return TopoutError(problem, why=_meaning(verb, error.argument.name), do=f"topout{verb} --help")
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        problem = f"{' '.join(error.unused_tokens)!r} is more than topout{verb} takes."
        return TopoutError(problem, why=f"it takes {_taken(verb)}", do=f"leave it out; topout{verb} --help")
    return TopoutError(
        " ".join(str(error).split()), why="these words do not fit the options", do=f"topout{verb} --help"
    )  # fmt: skip


def _script_taken(words: list[str]) -> tuple[str, str] | None:
    """An option before the script that has the script for its value, as in `--profile train.py`."""
    for option, value in pairwise(words):
        if option == "--" or (option.endswith(".py") and not option.startswith("-")):
            return None
        if option in OPTIONS and value.endswith(".py"):
            return option, value
    return None


def _taken(verb: str) -> str:
    arguments = reduce(App.__getitem__, verb.split(), app).assemble_argument_collection()
    names = [one.name for one in arguments if not one.name.startswith("-")]
    return f"{' and '.join(names) or 'no words'} beside its options"


def _empty_word(verb: str, name: str, argument: Argument) -> TopoutError:
    return TopoutError(
        f"{name} is empty.",
        why=_meaning(verb, argument.name),
        do=f"give it a value{'' if argument.required else ', or leave it out'} (a variable of the shell may be "
        f"unset); topout{verb} --help",
    )


def _meaning(verb: str, name: str) -> str:
    """What `topout VERB --help` says of it."""
    # options of `run` may follow `submit`, too
    verbs = [verb.split(), ["run"]] if verb in _OF_RUNS else [verb.split()]
    commands = [reduce(App.__getitem__, words, app) for words in verbs]
    told = [one for command in commands for one in command.assemble_argument_collection(parse_docstring=True)]
    found = next((one.parameter.help for one in told if name in one.names), None)
    return f"{name}: {found.strip()}" if found else "these words do not fit the options"


def _unknown_verb(command: str, word: str, verbs: list[str]) -> TopoutError:
    near = get_close_matches(word, verbs, n=1)
    return TopoutError(
        f"There is no verb {word!r}.",
        why=f"{command} has {', '.join(verbs)}",
        do=f"did you mean {command} {near[0]}?" if near else f"{command} --help",
    )


def _names(verbs: App) -> list[str]:
    return [name for name in verbs if not name.startswith("-")]
