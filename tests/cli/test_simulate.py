"""`topout simulate` as typed: what is missing is named with its meaning, and a what-if without effect is said."""

import pytest

from topout.cli.main import call

WORDS = ["simulate", "resnet50-v100", "--system", "summit", "--nodes", "1,2", "--steps", "5"]


def what_if(capsys, *changes):
    assert call([*WORDS, *(word for change in changes for word in ("--what-if", change))]) == 0
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("Note    ")]


@pytest.mark.parametrize("change", ["evaluation.is_sharded=true", "input.samples=256", "nodes=4608"])
def test_a_change_to_what_is_so_already_is_said(capsys, change):
    assert what_if(capsys, change) == [f"Note    --what-if {change} changes nothing: it is so already."]


def test_a_value_that_only_loses_its_range_is_said(capsys):
    change = "between.bytes_per_s=12.5e9"
    assert what_if(capsys, change) == [f"Note    --what-if {change} is the value already; only its range is left out."]


def test_a_change_that_the_job_has_no_use_for_is_said(capsys):
    # it evaluates nothing, sharded or not
    (note,) = what_if(capsys, "evaluation.is_sharded=false")
    assert note.startswith("Note    What was changed has no effect")


def test_a_change_that_shows_needs_no_word(capsys):
    assert what_if(capsys, "between.bytes_per_s=1e9") == []
    assert what_if(capsys) == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("simulate resnet50-v100", ["topout simulate needs --system.", "why  --system: A system of topout's"]),
        ("simulate resnet50-v100 --system", ["--system needs a value.", "why  --system: A system of topout's"]),
        ("simulate resnet50-v100 --sytem summit", ["topout simulate needs --system. Did you mean --system instead of"]),
        ("simulate --system summit", ["topout simulate needs JOB.", "why  JOB: A job of topout's"]),
        ("data head", ["topout data head needs PATH.", "why  PATH: A pack.", "do   topout data head --help"]),
    ],
)
def test_what_is_missing_is_named_with_its_meaning(capsys, words, says):
    assert call(words.split()) == 2
    said = capsys.readouterr().err
    assert [line[:7] for line in said.splitlines()[-2:]] == ["  why  ", "  do   "]
    assert [text for text in says if text not in said] == []


@pytest.mark.parametrize(
    "words",
    [
        "simulate resnet50-v100 --system summit --steps 2.5",
        "plan resnet50-v100 --system summit --samples 1e6 --max-nodes 2.5",
        "scale --ranks 1,2 --repeats 2.5 train.py",
        "doctor --nodes 2.5",
        "data head pack -n 2.5",
        "submit --time 1h --nodes 2.5 train.py",
        "submit --time 1h --steps 2.5 train.py",
    ],
)
def test_a_number_with_a_fraction_is_not_rounded(capsys, words):
    assert call(words.split()) == 2
    assert " 2.5 is not a whole number.\n  why  " in capsys.readouterr().err


def test_other_values_are_read_as_ever(capsys):
    """The parser's own reading of floats, flags, lists and paths."""
    words = "plan resnet50-v100 --system summit --samples 1.5e6 --epochs 0.5 --max-nodes 2 --json"
    assert call([*words.split(), "--what-if", "input.samples=128", "--what-if=between.bytes_per_s=25e9"]) == 0
    assert '"choices"' in capsys.readouterr().out
