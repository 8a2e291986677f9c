"""What laws say beyond the points, with the range that the points leave them."""

import pytest

from tests.report.study_samples import scaling_point
from topout.study.law_ranges import law_ranges


def points(spread: float, first: int = 1) -> list:
    """Amdahl's: one part in ten of the time does not shrink."""
    rates = {n: 1000 * n / (1 + 0.1 * (n - 1)) for n in (1, 2, 4, 8)}
    return [scaling_point(n, rate, spread=spread, forward=64 / rate * 1e3) for n, rate in rates.items() if n >= first]


def test_a_range_holds_the_law_and_widens_with_the_intervals_of_the_points(monkeypatch):
    # each draw fits all laws anew
    monkeypatch.setattr("topout.study.law_ranges.DRAWS", 20)
    narrow, wide = (law_ranges(points(spread), [16])["Amdahl"][0] for spread in (0.01, 0.05))
    assert narrow.value == wide.value == pytest.approx(1000 * 16 / 2.5, rel=1e-6)
    assert narrow.low < narrow.value < narrow.high
    assert wide.high - wide.low > 3 * (narrow.high - narrow.low)


def test_points_of_a_single_run_leave_no_range():
    one = law_ranges(points(0.0), [16])["Amdahl"][0]
    assert one.low == one.value == one.high


def test_without_one_rank_there_is_no_law():
    assert law_ranges(points(0.01, first=2), [16]) == {}
