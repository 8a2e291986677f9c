"""bash reads back exactly the words that were typed, and none of them starts a line of the script."""

import os
import subprocess

from hypothesis import given, settings
from hypothesis import strategies as st

from topout.submit.quoting import joined, quoted

WORDS = st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), max_size=6)


def read_back(line):
    done = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {line}"],
        capture_output=True,
        check=True,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
    )
    return done.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]


@settings(max_examples=150, deadline=None)
@given(WORDS)
def test_bash_reads_back_what_was_typed(words):
    line = joined(["first", *words])
    assert "\n" not in line and "\r" not in line
    assert read_back(line) == ["first", *words]


def test_words_that_shells_love_survive():
    words = [
        "a b",
        "it's",
        '"',
        "$HOME",
        "`id`",
        "\\",
        "*",
        "!",
        "#SBATCH",
        "line\n#SBATCH --nodes=9",
        "\x01\x7f7",
        "ü",
        "",
    ]
    assert read_back(joined(words)) == words


def test_bytes_that_are_no_text_survive():
    word = os.fsdecode(b"caf\xe9")
    done = subprocess.run(
        [b"bash", b"-c", f"printf %s {quoted(word)}".encode("utf-8", "surrogateescape")],
        capture_output=True,
        check=True,
    )
    assert done.stdout == b"caf\xe9"


def test_plain_words_stay_plain():
    assert joined(["topout", "run", "--lr=0.1", "data/train.py"]) == "topout run --lr=0.1 data/train.py"
