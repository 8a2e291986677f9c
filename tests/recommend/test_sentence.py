"""Sentences read well with everything measured, and with something missing."""

import pytest

from topout.recommend.sentence import bytes_text, fill
from topout.schema.measures import Memory


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.977 KiB"),
        (1536, "1.5 KiB"),
        (80 * 2**30, "80 GiB"),
        (2**60, "1.02e+03 PiB"),
    ],
)
def test_bytes_have_three_digits_and_a_unit(num_bytes, text):
    assert bytes_text(num_bytes) == text


def test_parts_of_measures_are_reached_by_name():
    context = {"memory": Memory(requested_bytes=2 * 2**30), "value": 0.254}
    assert fill("{memory.requested_bytes:bytes} at {value:.0%}", context) == "2 GiB at 25 %"


def test_a_clause_with_something_not_measured_is_left_out():
    sentence = "Failed[ asking for {a:bytes}][, batch {b}]."
    assert fill(sentence, {"a": None, "b": 4}) == "Failed, batch 4."
    assert fill(sentence, {"a": 512, "b": None}) == "Failed asking for 512 B."


def test_what_is_missing_outside_a_clause_reads_as_a_question_mark():
    assert fill("{a} of {b:.1f}", {"a": 3, "b": None}) == "3 of ?"


def test_an_unknown_name_is_a_bug_of_the_rule():
    with pytest.raises(KeyError):
        fill("{nothing_like_it}", {"value": 1})
