"""Steps on batches do to each image what a plain reference does to it alone, whatever the batch around it."""

import colorsys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.feed.image_packs import photograph
from topout.epoch import randomness
from topout.feed.augment import IMAGENET_MEAN, IMAGENET_STD, ColorJitter, CutMix, MixUp, Normalize
from topout.feed.batch_augment import (
    beta,
    colour_jitter,
    cut_mix,
    cut_mix_box,
    jitter_parameters,
    mix_up,
    normalise,
    rotate,
)
from topout.feed.colours import adjust_brightness, adjust_contrast, adjust_hue, adjust_saturation
from topout.feed.pipeline import normalisation_table

KEYS = randomness.keys(3, 1, np.arange(6))


def batch(dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    images = torch.stack([torch.from_numpy(photograph(n, 20, 20)).permute(2, 0, 1) for n in range(6)])
    return images if dtype == torch.uint8 else images.to(dtype) / 255


def factor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).view(-1, 1, 1, 1)


def one_pixel(*rgb: int) -> torch.Tensor:
    return torch.tensor(rgb, dtype=torch.uint8).view(1, 3, 1, 1)


def test_brightness_multiplies_and_is_cut_off() -> None:
    assert adjust_brightness(one_pixel(10, 100, 200), factor(1.5)).flatten().tolist() == [15, 150, 255]
    # 0.3 * 11 = 3.3 becomes 3
    assert adjust_brightness(one_pixel(11, 1, 0), factor(0.3)).flatten().tolist() == [3, 0, 0]


def test_saturation_moves_towards_the_grey_value() -> None:
    # grey = floor(0.2989 * 100 + 0.587 * 50 + 0.114 * 200) = floor(82.04) = 82; half way: 91, 66, 141
    assert adjust_saturation(one_pixel(100, 50, 200), factor(0.5)).flatten().tolist() == [91, 66, 141]
    assert adjust_saturation(one_pixel(100, 50, 200), factor(0.0)).flatten().tolist() == [82, 82, 82]


def test_contrast_moves_towards_the_mean_grey_value() -> None:
    images = torch.tensor([[0, 100], [0, 100], [0, 100]], dtype=torch.uint8).view(1, 3, 1, 2)
    # grey of 100 is floor(99.99) = 99; the mean is 49.5; 0.5 * 100 + 24.75 = 74.75
    assert adjust_contrast(images, factor(0.5)).flatten().tolist() == [24, 74] * 3


@given(rgb=st.tuples(*[st.integers(0, 255)] * 3), turn=st.floats(-0.5, 0.5))
def test_hue_is_turned_as_the_standard_library_does_it(rgb: tuple[int, int, int], turn: float) -> None:
    turned = adjust_hue(one_pixel(*rgb), factor(turn)).flatten().tolist()
    hue, saturation, value = colorsys.rgb_to_hsv(*(level / 255 for level in rgb))
    expected = [level * 255.999 for level in colorsys.hsv_to_rgb((hue + turn) % 1.0, saturation, value)]
    assert all(abs(got - want) <= 1.0 for got, want in zip(turned, expected, strict=True))


def test_blending_is_torchvisions_to_the_level() -> None:
    """Its arithmetic written out: one float32 product, and one sum with a weight rounded from double precision."""
    images = torch.randint(0, 256, (4, 3, 50, 50), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    red, green, blue = (images[:, channel : channel + 1].float() for channel in range(3))
    grey = red.mul(0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114).floor_()
    mean = grey.mean(dim=(-3, -2, -1), keepdim=True)
    for value in (0.6, 0.85, 1.37):
        for adjust, other in ((adjust_saturation, grey), (adjust_contrast, mean)):
            expected = images.float().mul(value).add_(other, alpha=1.0 - value).clamp_(0, 255).to(torch.uint8)
            difference = (adjust(images, factor(*[value] * 4)).int() - expected.int()).abs()
            assert difference.max() <= 1 and (difference > 0).float().mean() < 1e-3


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_jitter_of_a_batch_is_jitter_of_each_image_alone(dtype: torch.dtype) -> None:
    jitter = ColorJitter(0.4, 0.4, 0.4, 0.1)
    images = batch(dtype)
    together = colour_jitter(jitter, images, KEYS)
    order, factors = jitter_parameters(jitter, KEYS)
    adjust = [adjust_brightness, adjust_contrast, adjust_saturation, adjust_hue]
    for row in range(6):
        alone = images[row : row + 1]
        for number in order[row]:
            alone = adjust[number](alone, factor(factors[row, number]))
        assert torch.equal(together[row : row + 1], alone)
    assert torch.equal(colour_jitter(jitter, images[2:4], KEYS[2:4]), together[2:4])


def test_jitter_orders_and_factors_are_spread_as_asked() -> None:
    keys = randomness.keys(0, 0, np.arange(12_000))
    order, factors = jitter_parameters(ColorJitter(0.4, (0.5, 0.7), 0.0, 0.2), keys)
    permutations = np.unique(order, axis=0, return_counts=True)[1]
    assert len(permutations) == 24 and abs(permutations - 500).max() < 100
    assert abs(factors[:, 0].min() - 0.6) < 0.01 and abs(factors[:, 0].max() - 1.4) < 0.01
    assert factors[:, 1].min() >= 0.5 and factors[:, 1].max() < 0.7
    assert np.isnan(factors[:, 2]).all()
    assert abs(factors[:, 3].mean()) < 0.01


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_quarter_turns_are_numpys(dtype: torch.dtype) -> None:
    images = batch(dtype)
    turned = rotate(images, KEYS)
    turns = [int(randomness.uniform(int(key), randomness.ROTATION) * 4) for key in KEYS]
    assert len(set(turns)) > 1
    for row, number in enumerate(turns):
        expected = np.rot90(images[row].permute(1, 2, 0).numpy(), number)
        assert np.array_equal(turned[row].permute(1, 2, 0).numpy(), expected)


def test_normalisation_is_torchvisions_in_float32_and_bfloat16() -> None:
    images = batch()
    mean, std = (torch.tensor(part).view(3, 1, 1) for part in (IMAGENET_MEAN, IMAGENET_STD))
    expected = (images.to(torch.float32) / 255 - mean) / std
    assert torch.equal(normalise(images, Normalize(), torch.float32), expected)
    assert torch.equal(normalise(images, Normalize(), torch.bfloat16), expected.to(torch.bfloat16))
    assert normalise(images, None, torch.float32).max() <= 1.0


@pytest.mark.parametrize("normalize", [None, Normalize()])
def test_the_table_of_the_decoders_says_the_same_bit_for_bit(normalize: Normalize | None) -> None:
    levels = torch.arange(256, dtype=torch.uint8).view(1, 1, 1, 256).expand(1, 3, 1, 256)
    single = normalise(levels, normalize, torch.float32)[0, :, 0]
    assert torch.equal(torch.from_numpy(normalisation_table(normalize, "float32")), single)
    half = normalise(levels, normalize, torch.bfloat16)[0, :, 0]
    assert torch.equal(torch.from_numpy(normalisation_table(normalize, "bfloat16")).view(torch.bfloat16), half)
    assert normalisation_table(normalize, "uint8") is None


def test_channels_stay_last_in_memory() -> None:
    images = batch(torch.float32).to(memory_format=torch.channels_last)
    labels = torch.zeros(6, dtype=torch.int64)
    jitter = ColorJitter(0.4, 0.4, 0.4, 0.1)
    for changed in (
        mix_up(MixUp(3), images, labels, 1)[0], cut_mix(CutMix(3), images, labels, 1)[0], rotate(images, KEYS),
        colour_jitter(jitter, images, KEYS), normalise(images, None, torch.float32),
    ):  # fmt: skip
        assert changed.is_contiguous(memory_format=torch.channels_last)


def test_mix_up_blends_each_image_with_the_one_before_it() -> None:
    images, labels = batch(torch.float32), torch.tensor([0, 1, 2, 0, 1, 2])
    key = randomness.key(0, 0, 5)
    share = beta(key, 0.2)
    mixed, shares = mix_up(MixUp(3, alpha=0.2), images, labels, key)
    for row in range(6):
        assert torch.allclose(mixed[row], share * images[row] + (1 - share) * images[row - 1], atol=1e-6)
        assert shares[row, labels[row]] == pytest.approx(share)
        assert shares[row, labels[row - 1]] == pytest.approx(1 - share)
    assert torch.equal(images, batch(torch.float32))


@settings(max_examples=50)
@given(position=st.integers(0, 10**9), alpha=st.floats(0.1, 5))
def test_cut_mix_replaces_a_box_and_shares_labels_by_its_area(position: int, alpha: float) -> None:
    images, labels = batch(), torch.tensor([0, 1, 2, 0, 1, 2])
    key = randomness.key(0, 0, position)
    left, top, right, bottom, share = cut_mix_box(CutMix(3, alpha), 20, 20, key)
    mixed, shares = cut_mix(CutMix(3, alpha), images, labels, key)
    inside = torch.zeros(20, 20, dtype=torch.bool)
    inside[top:bottom, left:right] = True
    for row in range(6):
        assert torch.equal(mixed[row], torch.where(inside, images[row - 1], images[row]))
    assert share == pytest.approx(1 - inside.sum().item() / 400)
    assert shares[1, 1] == pytest.approx(share) and shares.sum().item() == pytest.approx(6)


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_shares_are_beta_distributed(alpha: float) -> None:
    draws = np.array([beta(randomness.key(1, 0, n), alpha) for n in range(4_000)])
    assert abs(draws.mean() - 0.5) < 0.02
    assert draws.var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.06)
    if alpha == 1.0:
        counts = np.histogram(draws, bins=10, range=(0, 1))[0]
        assert ((counts - 400) ** 2 / 400).sum() < 27.9  # 99.9 % of 9 degrees of freedom
