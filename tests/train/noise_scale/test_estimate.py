"""The ratio of averages, its interval and its drift, on numbers whose noise scale is known."""

import math

import numpy as np

from topout.train.noise_scale.estimate import Sample, estimate, has_drifted, interval


def sample(small, big, step=0):
    return Sample(step=step, small=small, big=big, batch_small=8, batch_big=16)


def gaussian(chance, scale, *, num, dimensions=200, batch=8, parts=4):
    """Gradients of a loss whose noise scale is `scale`: G of length 1 in one direction, noise in all of them."""
    sigma = math.sqrt(scale / dimensions)
    made = []
    for step in range(num):
        gradients = chance.normal(0, sigma / math.sqrt(batch), (parts, dimensions))
        gradients[:, 0] += 1
        small, big = (gradients**2).sum(1).mean(), (gradients.mean(0) ** 2).sum()
        made.append(Sample(step=step, small=small, big=big, batch_small=batch, batch_big=batch * parts))
    return made


def test_a_pair_can_be_worked_out_by_hand():
    # |G|^2 = 1 and tr(Sigma) = 32 make |g|^2 = 1 + 32/8 and 1 + 32/16
    assert sample(5.0, 3.0).signal == 1.0
    assert sample(5.0, 3.0).noise == 32.0
    found = estimate([sample(5.0, 3.0)] * 8)
    assert (found.value, found.low, found.high) == (32.0, 32.0, 32.0)
    assert (found.num_samples, found.batch_size, found.has_drifted) == (8, 16, False)


def test_it_is_a_ratio_of_averages_not_an_average_of_ratios():
    # signals 1 and 3, noises 32 and 32
    assert estimate([sample(5.0, 3.0), sample(7.0, 5.0)] * 4).value == 16.0


def test_few_samples_say_nothing():
    assert estimate([sample(5.0, 3.0)] * 7) is None


def test_the_interval_covers_the_truth_in_nine_of_ten_windows():
    chance = np.random.default_rng(0)
    for scale in (20.0, 200.0, 1000.0):
        found = [estimate(gaussian(chance, scale, num=50)) for _ in range(200)]
        covered = np.mean([each.low <= scale <= each.high for each in found])
        assert covered >= 0.9, scale
        # at 30 times the batch, 50 steps often cannot tell the signal from nothing
        assert scale == 1000.0 or np.median([each.high / each.low for each in found]) < 4, scale


def test_neighbours_that_are_alike_widen_the_interval():
    chance = np.random.default_rng(1)
    steps = chance.normal(size=(4000,))
    alike = np.convolve(steps, np.ones(4) / 2, mode="valid")[:3960].reshape(-1, 40)
    signal = np.ones(40)
    covered = np.mean([low <= 10 <= high for low, high in (interval(10 + row, signal) for row in alike)])
    assert covered >= 0.85  # 0.7 without


def test_noise_that_drowns_the_signal_has_no_upper_limit():
    chance = np.random.default_rng(2)
    found = estimate(gaussian(chance, 1e6, num=20))
    assert math.isinf(found.high) and 0 < found.low < 1e6
    assert "above" in str(found) and "no upper limit" in str(found)


def test_a_window_over_which_it_grows_fourfold_is_said_to_drift_and_a_still_one_is_not():
    chance = np.random.default_rng(3)
    growing = [gaussian(chance, 50 * 6 ** (step / 60), num=1)[0] for step in range(60)]
    assert estimate(growing).has_drifted
    assert ", moving" in str(estimate(growing))
    still = [estimate(gaussian(chance, 50.0, num=60)).has_drifted for _ in range(100)]
    assert sum(still) <= 2


def test_two_samples_apart_are_no_drift():
    assert not has_drifted(np.array([1.0, 100.0]), np.ones(2))
