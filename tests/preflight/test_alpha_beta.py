"""alpha and beta come back out of times that were made from them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.preflight.samples import link
from topout.preflight.alpha_beta import fit_line, fit_link
from topout.preflight.facts import LinkSample


@given(alpha_s=st.floats(1e-7, 1e-2), beta=st.floats(1e6, 1e12))
def test_a_link_that_follows_the_model_gives_its_alpha_and_beta_back(alpha_s: float, beta: float) -> None:
    fit = fit_link(link(alpha_s, beta).samples)
    assert fit is not None and fit.beta_bytes_per_s is not None
    # a byte that costs nothing beside alpha, or the reverse, cannot be told to the last digit
    largest_s = alpha_s + (8 << 20) / beta
    for num_bytes in (64, 8 << 20):
        predicted_s = fit.alpha_s + num_bytes / fit.beta_bytes_per_s
        assert predicted_s == pytest.approx(alpha_s + num_bytes / beta, rel=1e-3, abs=1e-9 * largest_s)


def test_figures_that_can_be_checked_by_hand() -> None:
    # 100 µs and 1 GB/s: a kilobyte takes 101 µs, a megabyte 1.1 ms
    samples = [LinkSample(num_bytes=1000, times_s=(101e-6,)), LinkSample(num_bytes=1_000_000, times_s=(1100e-6,))]
    fit = fit_link(samples)
    assert fit is not None
    assert fit.alpha_s == pytest.approx(100e-6)
    assert fit.beta_bytes_per_s == pytest.approx(1e9)
    assert fit.half_speed_bytes == pytest.approx(100_000)
    assert fit.alpha_interval_s == pytest.approx((100e-6, 100e-6))


def test_small_messages_weigh_as_much_as_large_ones() -> None:
    # one large message ten times too slow must not move alpha by more than a part of itself
    points = [(64.0, 10e-6), (4096.0, 10e-6), (65536.0, 12e-6), (8e6, 80e-3)]
    alpha_s, _ = fit_line(points)
    assert 5e-6 < alpha_s < 12e-6


def test_neither_number_is_ever_negative() -> None:
    assert fit_line([(1.0, 2.0), (2.0, 1.0)])[1] == 0.0
    alpha_s, per_byte_s = fit_line([(1.0, 1.0), (2.0, 4.0)])
    assert alpha_s == 0.0 and per_byte_s > 0


def test_the_interval_spans_what_scatter_leaves_open() -> None:
    noisy = [
        LinkSample(num_bytes=1000, times_s=(90e-6, 100e-6, 130e-6)),
        LinkSample(num_bytes=1_000_000, times_s=(1.0e-3, 1.1e-3, 1.6e-3)),
    ]
    fit = fit_link(noisy)
    assert fit is not None and fit.beta_interval_bytes_per_s is not None and fit.beta_bytes_per_s is not None
    low, high = fit.beta_interval_bytes_per_s
    assert low < fit.beta_bytes_per_s < high


def test_a_link_that_is_no_line_says_how_far_it_is_off() -> None:
    straight = fit_link(link(50e-6, 1e9).samples)
    assert straight is not None and straight.worst_error_share < 1e-6
    # a burst: everything below a megabyte passes at once, then the shaper brakes
    bent = [LinkSample(num_bytes=n, times_s=(t,)) for n, t in ((64, 10e-6), (65536, 12e-6), (8 << 20, 68e-3))]
    fit = fit_link(bent)
    assert fit is not None and fit.worst_error_share > 0.3


def test_one_size_is_no_line() -> None:
    assert fit_link([LinkSample(num_bytes=64, times_s=(1e-6, 2e-6))]) is None
    assert fit_link([]) is None
