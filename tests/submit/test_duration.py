"""A time limit means the same to the user, to topout and to the scheduler."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topout.schema.errors import TopoutError
from topout.submit.duration import parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2h", 7200),
        ("90m", 5400),
        ("1d12h", 129600),
        ("1.5h", 5400),
        ("45s", 45),
        ("1h 30m", 5400),
        ("2H", 7200),
        ("02:00:00", 7200),
        ("1-12:00:00", 129600),
        ("100:00:00", 360000),
    ],
)
def test_a_time_is_read_as_people_write_it(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "90", "2:00", "h", "2x", "12h1d", "2h2h", "-2h", "0h", "0:99:00", "1d-2h", "٢h"])
def test_what_could_mean_two_things_is_refused(text):
    with pytest.raises(TopoutError, match="is not a time"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["-2h", "-1-12:00:00", "-5", "0h", "0:00:00"])
def test_a_time_that_is_not_positive_is_told_so(text):
    with pytest.raises(TopoutError, match="must be positive"):
        parse_duration(text)


@given(st.integers(0, 30), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_units_and_clock_agree(days, hours, minutes, seconds):
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if total:
        assert parse_duration(f"{days}-{hours:02}:{minutes:02}:{seconds:02}") == total
        assert parse_duration(f"{days}d{hours}h{minutes}m{seconds}s") == total
