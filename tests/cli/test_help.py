"""Help as it is printed: what a verb takes for granted is said, and its whole explanation stands there."""

import pytest

from topout.cli.app import app, data
from topout.cli.main import call

VERBS = [[name] for name in app if name[0] != "-" and name != "data"]
VERBS += [["data", name] for name in data if name[0] != "-"]


def arguments_of(verb):
    command = app
    for word in verb:
        command = command[word]
    return command.assemble_argument_collection(parse_docstring=True)


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_every_default_is_said(verb):
    unsaid = []
    for argument in arguments_of(verb):
        default = argument.field_info.default
        if default in (None, False, ()) or default is argument.field_info.empty:
            continue
        said = "yes" if default is True else f"{default:g}" if isinstance(default, float) else str(default)
        if f"Default: {said}." not in argument.parameter.help:
            unsaid.append((argument.name, said))
    assert unsaid == []


def test_what_to_start_with_is_said_beside_the_list_of_verbs_alone(capsys):
    for words, says in (("--help", True), ("compare --help", False), ("data --help", False), ("data info -h", False)):
        assert call(words.split()) == 0
        assert ("Start with:" in capsys.readouterr().out) == says


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("run --help", "Options stand before SCRIPT; everything after it belongs to the script."),
        ("submit -h", "Options of topout run may stand among these"),
        ("scale --help", "Run folders can be given instead of a script"),
        ("scale --help", "Usage: topout scale [OPTIONS] SCRIPT [ARGS...] | RUN..."),
        ("plan --help", "Usage: topout plan JOB --system SYSTEM (--samples N | --target-loss LOSS) [OPTIONS]"),
        ("analyze --help", "Usage: topout analyze [OPTIONS] [RUN]"),
        ("data --help", "Look at, check, mend, convert and unpack packs."),
        ("--help", "Watch a running job, all ranks in one pane."),
    ],
)
def test_help_of_a_verb_is_all_that_is_said_of_it(capsys, words, says):
    assert call(words.split()) == 0
    assert says in " ".join(capsys.readouterr().out.split())
