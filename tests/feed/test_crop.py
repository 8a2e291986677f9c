"""Windows follow torchvision's formulas: checked against values worked out by hand and a plain second writing."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.epoch.random_vectors import VECTORS, crops
from topout.epoch import randomness
from topout.feed.augment import (
    CenterCrop,
    ColorJitter,
    ImageTransform,
    MixUp,
    Normalize,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomRotate90,
    Resize,
    eval_images,
    train_images,
)
from topout.feed.crop import place, random_resized_crop
from topout.schema.errors import TopoutError


def plain_crop(width: int, height: int, key: int, scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3)) -> tuple[int, int, int, int]:
    """torchvision.transforms.v2.RandomResizedCrop.make_params, written again with numbered draws."""
    area = height * width
    log_ratio = np.log(ratio)
    for number in range(10):
        target = area * (scale[0] + randomness.uniform(key, 2 * number) * (scale[1] - scale[0]))
        aspect = np.exp(log_ratio[0] + randomness.uniform(key, 2 * number + 1) * (log_ratio[1] - log_ratio[0]))
        w, h = int(np.rint(np.sqrt(target * aspect))), int(np.rint(np.sqrt(target / aspect)))
        if 0 < w <= width and 0 < h <= height:
            i = math.floor(randomness.uniform(key, 20) * (height - h + 1))
            j = math.floor(randomness.uniform(key, 21) * (width - w + 1))
            return j, i, w, h
    in_ratio = width / height
    if in_ratio < min(ratio):
        w, h = width, int(np.rint(width / min(ratio)))
    elif in_ratio > max(ratio):
        w, h = int(np.rint(height * max(ratio))), height
    else:
        w, h = width, height
    return (width - w) // 2, (height - h) // 2, w, h


@given(width=st.integers(1, 5_000), height=st.integers(1, 5_000), key=st.integers(0, 2**64 - 1))
def test_a_random_resized_crop_is_torchvisions(width: int, height: int, key: int) -> None:
    left, top, crop_width, crop_height = random_resized_crop(RandomResizedCrop(224), width, height, key)
    assert (left, top, crop_width, crop_height) == plain_crop(width, height, key)
    assert 0 <= left <= left + crop_width <= width and 0 <= top <= top + crop_height <= height
    assert crop_width > 0 and crop_height > 0


def test_an_image_that_no_try_fits_gives_its_middle() -> None:
    # 4000 x 11: a crop as high as the image is at most 11 * 4/3 = 14.67 wide; 8 % of the area never fits
    assert random_resized_crop(RandomResizedCrop(224), 4_000, 11, 1) == (1992, 0, 15, 11)
    assert random_resized_crop(RandomResizedCrop(224), 11, 4_000, 1) == (0, 1992, 11, 15)


def test_a_line_too_thin_for_the_ratios_gives_a_pixel() -> None:
    assert random_resized_crop(RandomResizedCrop(8, ratio=(3.0, 4.0)), 1, 40, 1) == (0, 19, 1, 1)
    assert random_resized_crop(RandomResizedCrop(8, ratio=(0.2, 0.3)), 40, 1, 1) == (19, 0, 1, 1)


def test_areas_and_ratios_are_spread_as_asked() -> None:
    crop = RandomResizedCrop(224, scale=(0.25, 0.5), ratio=(0.5, 2.0))
    windows = np.array([random_resized_crop(crop, 1_000, 1_000, randomness.key(0, 0, n)) for n in range(4_000)])
    area, ratio = windows[:, 2] * windows[:, 3] / 1e6, np.log(windows[:, 2] / windows[:, 3])
    assert area.min() > 0.249 and area.max() < 0.501
    assert np.abs(ratio).max() < math.log(2) + 0.005
    assert abs(area.mean() - 0.375) < 0.005 and abs(ratio.mean()) < 0.02
    # uniform from 0 to 1000 - height: half of the free room on average
    assert abs((windows[:, 1] / (1_001 - windows[:, 3])).mean() - 0.5) < 0.02


def test_the_vectors_are_what_is_computed() -> None:
    assert json.loads(VECTORS.read_text())["crops"] == crops()


def test_evaluation_resizes_the_short_side_and_takes_the_middle() -> None:
    window = place(eval_images(256, 224), 500, 375, 0)
    # int(256 * 500 / 375) = 341; (341 - 224) / 2 = 58.5, to the even neighbour
    assert (window.resized_width, window.resized_height, window.from_left, window.from_top) == (341, 256, 58, 16)
    upright = place(eval_images(256, 224), 375, 500, 0)
    assert (upright.resized_width, upright.resized_height, upright.from_left, upright.from_top) == (256, 341, 16, 58)
    assert not window.is_flipped


def test_a_crop_larger_than_the_image_is_padded_around_it() -> None:
    window = place(ImageTransform((CenterCrop((10, 7)),)), 4, 8, 0)
    # torchvision pads (7 - 4) // 2 = 1 left and (10 - 8) // 2 = 1 above
    assert (window.from_left, window.from_top) == (-1, -1)


def test_a_padded_random_crop_reaches_every_place_equally_often() -> None:
    transform = ImageTransform((RandomCrop(32, padding=4),))
    windows = [place(transform, 32, 32, randomness.key(0, 0, n)) for n in range(9_000)]
    counts = np.bincount([window.from_left + 4 for window in windows])
    assert len(counts) == 9 and abs(counts - 1_000).max() < 150
    assert {window.from_top for window in windows} == set(range(-4, 5))


def test_a_random_crop_of_a_small_image_is_refused() -> None:
    with pytest.raises(TopoutError, match="30 x 20 is too small for a random crop of 32 x 32"):
        place(ImageTransform((RandomCrop(32),)), 20, 30, 0)


def test_flips_have_their_share() -> None:
    always = ImageTransform((RandomResizedCrop(8), RandomHorizontalFlip(1.0)))
    never = ImageTransform((RandomResizedCrop(8), RandomHorizontalFlip(0.0)))
    some = ImageTransform((RandomResizedCrop(8), RandomHorizontalFlip(0.25)))
    keys = [randomness.key(0, 0, n) for n in range(4_000)]
    assert all(place(always, 9, 9, key).is_flipped for key in keys)
    assert not any(place(never, 9, 9, key).is_flipped for key in keys)
    assert abs(np.mean([place(some, 9, 9, key).is_flipped for key in keys]) - 0.25) < 0.03


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ((RandomHorizontalFlip(), RandomResizedCrop(8)), "order"),
        ((RandomResizedCrop(8), RandomResizedCrop(8)), "order"),
        ((RandomResizedCrop(8), CenterCrop(8)), "Two crops"),
        ((Resize(8),), "different sizes"),
        ((), "different sizes"),
        ((RandomResizedCrop(0),), "cannot be done"),
        ((RandomResizedCrop(8, scale=(1.0, 0.5)),), "cannot be done"),
        ((RandomResizedCrop(8), RandomHorizontalFlip(1.5)), "cannot be done"),
        ((RandomResizedCrop((8, 9)), RandomRotate90()), "square"),
        ((RandomResizedCrop(8), ColorJitter(hue=0.6)), "ColorJitter"),
        ((RandomResizedCrop(8), ColorJitter(brightness=-1)), "ColorJitter"),
        ((RandomResizedCrop(8), "flip"), "str is no step"),
    ],
)
def test_steps_that_make_no_sense_are_refused(steps: tuple[object, ...], says: str) -> None:
    with pytest.raises(TopoutError, match=says):
        ImageTransform(steps)


def test_steps_added_to_the_usual_ones_find_their_place() -> None:
    kinds = [type(step) for step in train_images(64, MixUp(10), ColorJitter(0.4)).steps]
    assert kinds == [RandomResizedCrop, RandomHorizontalFlip, ColorJitter, Normalize, MixUp]
    assert train_images(64, RandomHorizontalFlip(0.1)).flip_share == 0.1


def test_jitter_ranges_are_those_of_torchvision() -> None:
    assert ColorJitter(0.4, 1.5, (0.2, 0.3), 0.1).ranges() == ((0.6, 1.4), (0.0, 2.5), (0.2, 0.3), (-0.1, 0.1))
    assert ColorJitter().ranges() == (None, None, None, None)
