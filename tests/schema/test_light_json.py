"""Texts are those of `json`, to the letter, and what that refuses is refused."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topout.schema.errors import ExitCode
from topout.schema.light_json import dumps, dumps_indented, loads

TEXTS = st.text(st.characters(exclude_categories=()))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=20,
)
NO_JSON = (
    "",
    " ",
    "{",
    "[1,]",
    "nul",
    '{"a": 1} 2',
    '"\x01"',
    "\ufeff1",
    "{1: 2}",
    "'a'",
    "0x1",
    "-",
    "[1 2]",
    "1" * 5000,
)


@given(VALUES)
def test_what_is_written_is_what_json_writes(value):
    assert dumps(value) == json.dumps(value)
    assert dumps_indented(value) == json.dumps(value, indent=1)


@given(VALUES)
def test_what_is_read_is_what_json_reads(value):
    text = json.dumps(value)
    # NaN is equal to nothing
    assert repr(loads(text)) == repr(json.loads(text))
    plain = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
    assert repr(loads(plain)) == repr(json.loads(plain))


@given(st.text('[]{}:,"\\u0019eE+-. ntfNI'))
def test_any_text_is_read_as_json_reads_it_or_refused_as_there(text):
    def outcome(read):
        try:
            return repr(read(text))
        except ValueError:
            return "refused"

    assert outcome(loads) == outcome(json.loads)


@pytest.mark.parametrize("text", NO_JSON)
def test_what_is_no_json_is_a_value_error(text):
    with pytest.raises(ValueError):
        loads(text)
    with pytest.raises(ValueError):
        loads(text.encode())


def test_bytes_that_are_no_utf_8_are_a_value_error():
    with pytest.raises(ValueError):
        loads(b'"\xff"')


def test_brackets_without_end_are_an_error_that_can_be_caught():
    with pytest.raises(RecursionError):
        loads("[" * 1_000_000)


def test_keys_and_numbers_with_names_are_written_as_there():
    value = {1: ExitCode.USAGE, None: (1, ()), False: {}, 0.5: math.inf}
    assert dumps(value) == json.dumps(value)
    assert dumps_indented(value) == json.dumps(value, indent=1)


def test_what_has_no_json_is_refused_or_put_into_words():
    with pytest.raises(TypeError, match="set is not JSON serializable"):
        dumps({"a": {1}})
    assert dumps({"a": {1}}, default=str) == '{"a": "{1}"}'


def test_a_value_that_was_refused_is_no_circle_later():
    value = [{1}]
    for _ in range(2):
        with pytest.raises(TypeError):
            dumps(value)
    value[0] = [1]
    assert dumps(value) == "[[1]]"


def test_a_circle_is_refused():
    circle: list = []
    circle.append(circle)
    with pytest.raises(ValueError, match="Circular"):
        dumps(circle)
