"""Samples to a target loss, from curves whose law is known."""

import json

import numpy as np
import pytest

from topout.schema.errors import TopoutError
from topout.study.losses import Losses, read_losses
from topout.study.target_loss import samples_to

SAMPLES = np.arange(1, 2001) * 500.0


def curve(floor=0.5, scale=100.0, exponent=0.5, noise=0.0, samples=SAMPLES, seed=0):
    clean = floor + scale * samples**-exponent
    factors = 1 + noise * np.random.default_rng(seed).normal(size=len(clean))
    return Losses(name="curve", samples=samples, losses=clean * factors)


def test_a_clean_curve_says_exactly_when_the_target_comes():
    # 0.5 + 100 / sqrt(s) = 0.55 at s = 4e6, four times what was seen
    found = samples_to(0.55, curve())
    assert found.samples == pytest.approx(4e6, rel=0.05)
    assert found.floor == pytest.approx(0.5, rel=0.01)
    assert not found.is_seen


def test_a_target_that_the_curve_reached_is_read_off_it():
    found = samples_to(0.7, curve())
    # 100 / sqrt(s) = 0.2
    assert found.samples == pytest.approx(250_000, rel=0.02)
    assert found.is_seen


def test_ranges_hold_the_truth_about_as_often_as_they_say():
    held = 0
    for seed in range(40):
        found = samples_to(0.58, curve(noise=0.03, seed=seed))
        held += found.low <= (100 / 0.08) ** 2 <= found.high
    # 80 % of 40 is 32, with a standard deviation of 2.5
    assert 25 <= held <= 40


def test_noise_widens_the_range():
    quiet, loud = (samples_to(0.58, curve(noise=noise)) for noise in (0.005, 0.05))
    assert loud.high / loud.low - 1 > 4 * (quiet.high / quiet.low - 1)


@pytest.mark.parametrize("target", [0.5, 0.3, -1.0])
def test_a_target_at_or_below_the_floor_is_refused(target):
    with pytest.raises(TopoutError, match=r"levels off at 0\.5"):
        samples_to(target, curve(noise=0.01))


def test_a_curve_that_does_not_fall_reaches_nothing():
    flat = Losses(name="flat", samples=SAMPLES, losses=np.ones(len(SAMPLES)))
    with pytest.raises(TopoutError, match="levels off at 1 "):
        samples_to(0.9, flat)


def test_a_target_far_beyond_the_curve_is_said():
    assert any("16 times beyond" in note for note in samples_to(0.525, curve()).notes)
    assert samples_to(0.56, curve()).notes == ()


def test_warm_up_does_not_bend_the_fit():
    plain = curve()
    warm = np.where(SAMPLES < 8000, 3.0, plain.losses)
    found = samples_to(0.55, Losses(name="warm", samples=SAMPLES, losses=warm))
    assert found.samples == pytest.approx(samples_to(0.55, plain).samples, rel=1e-6)


def test_a_few_losses_are_no_curve():
    with pytest.raises(TopoutError, match="too few losses"):
        samples_to(0.55, curve(samples=SAMPLES[:4]))


def test_files_count_samples_or_steps(tmp_path):
    by_samples = tmp_path / "a.csv"
    by_samples.write_text("samples, loss\n64,2.0\n128,1.5\n")
    by_steps = tmp_path / "b.json"
    by_steps.write_text(json.dumps([{"step": 2, "loss": 1.5}, {"step": 1, "loss": 9.0}, {"step": 1, "loss": 2.0}]))
    for found in (read_losses(by_samples), read_losses(by_steps, batch=64)):
        # the second loss of step 1 counts: a job that went on from a checkpoint repeats steps
        assert found.samples.tolist() == [64.0, 128.0]
        assert found.losses.tolist() == [2.0, 1.5]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("step,loss\n1,2\n2,1\n", "--curve-batch"),
        ("epoch,loss\n1,2\n", "epoch, loss"),
        ("samples,loss\n1,nan\n2,1\n", "loss is 'nan'"),
        ("samples,loss\n1,\n2,1\n", "loss is ''"),
        ("samples,loss\n1,2\n", "1 losses"),
        ("", "columns are none"),
    ],
)
def test_a_file_without_a_curve_says_what_is_wrong(tmp_path, text, words):
    path = tmp_path / "losses.csv"
    path.write_text(text)
    with pytest.raises(TopoutError) as caught:
        read_losses(path)
    assert words in str(caught.value)


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(TopoutError, match="cannot be read"):
        read_losses(tmp_path / "none.csv")
