"""S = Smin (1 + Bc / B): the curve is found again, and where nothing bends only a bound is claimed."""

import math

import numpy as np
import pytest

from topout.train.probe.fit import fit

SIZES = (32, 128, 512, 2048)


def curve(critical, fewest, sizes=SIZES):
    return {size: [fewest * (1 + critical / size)] for size in sizes}


@pytest.mark.parametrize("critical", [50.0, 200.0, 1500.0])
def test_points_on_a_curve_give_it_back(critical):
    found = fit(curve(critical, 14.0))
    assert found.critical == pytest.approx(critical, rel=0.03)
    assert found.fewest_steps == pytest.approx(14.0, rel=0.03)
    assert found.low <= critical <= found.high


def test_the_curve_of_the_first_measurement_is_found_again():
    # steps to a loss of 0.60 at five sizes; the fit by hand gave 196 and 14.1
    found = fit({32: [104], 128: [32], 512: [23], 2048: [14], 4096: [15]})
    assert found.critical == pytest.approx(196, rel=0.15)
    assert found.fewest_steps == pytest.approx(14.1, rel=0.1)
    assert found.low < 174 and 211 < found.high


def test_scattered_points_are_within_the_interval_nine_times_in_ten():
    chance = np.random.default_rng(0)
    covered = 0
    for _ in range(60):
        steps = {size: [runs[0] * math.exp(chance.normal(0, 0.1))] for size, runs in curve(300.0, 20.0).items()}
        found = fit(steps)
        covered += found.low <= 300.0 <= found.high
    assert covered >= 54


def test_steps_that_fall_in_proportion_bound_it_from_below():
    found = fit({size: [64_000 / size] for size in SIZES})
    assert (found.critical, found.low, found.high) == (None, 2048.0, math.inf)


def test_steps_that_do_not_fall_bound_it_from_above():
    found = fit({size: [40.0] for size in SIZES})
    assert (found.critical, found.low, found.high) == (None, 0.0, 32.0)
