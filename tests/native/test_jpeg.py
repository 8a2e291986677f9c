"""The native decoder gives the pixels that Pillow gives, for every window, and refuses what it cannot decode so."""

import io
import math
import random

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from topout.native.bindings import ImageChoice, ImageTransformation, library

FINE, UNSUPPORTED, DAMAGED = 0, 2, 3
RANDOM_RESIZED_CROP, RESIZE_AND_CENTRE_CROP, RESIZE_TO = 0, 1, 2


@pytest.fixture(scope="module")
def native():
    found = library()
    assert found is not None, "the tests' machine has a C compiler"
    return found


def picture(width, height, seed):
    """Blocks of colour with grain: edges and noise, so that every coefficient occurs."""
    rng = np.random.default_rng(seed)
    blocks = np.kron(rng.normal(0, 1, (height // 8 + 1, width // 8 + 1, 3)), np.ones((8, 8, 1)))[:height, :width]
    pixels = blocks * 50 + 128 + rng.normal(0, 12, (height, width, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def encoded(image, **options):
    file = io.BytesIO()
    image.save(file, "JPEG", **options)
    return file.getvalue()


def transformation(kind=RESIZE_TO, size=64, **more):
    settings = {
        "kind": kind, "out_width": size, "out_height": size, "short_side": size + 5, "area_low": 0.08, "area_high": 1.0,
        "ratio_low": 3 / 4, "ratio_high": 4 / 3, "log_ratio_low": math.log(3 / 4), "log_ratio_high": math.log(4 / 3),
        "channels_last": 1, "most_pixels": 1 << 26,
    }  # fmt: skip
    return ImageTransformation(**{**settings, **more})


def resized(image, width, height):
    """Across first, then down: Pillow 13 may take the other order, which rounds otherwise."""
    across = image.resize((width, image.height), Image.Resampling.BILINEAR)
    return across.resize((width, height), Image.Resampling.BILINEAR)


def reference(data, settings: ImageTransformation, choice: ImageChoice):
    image = Image.open(io.BytesIO(data)).convert("RGB")
    size = settings.out_width
    if settings.kind == RESIZE_AND_CENTRE_CROP:
        short = settings.short_side
        if image.width <= image.height:
            width, height = short, int(short * image.height / image.width)
        else:
            width, height = int(short * image.width / image.height), short
        left, top = round((width - size) / 2), round((height - size) / 2)
        image = resized(image, width, height).crop((left, top, left + size, top + size))
    else:
        box = (choice.left, choice.top, choice.left + choice.width, choice.top + choice.height)
        image = resized(image.crop(box), size, size)
    return np.asarray(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if choice.is_flipped else image)


def decoded(native, data, settings, key=1):
    out = np.zeros((settings.out_height, settings.out_width, 3), np.uint8)
    status, choice = native.image(settings, data, key, out)
    return status, choice, out


@pytest.mark.parametrize("seed", range(300))
def test_any_window_of_any_ordinary_file_has_pillows_pixels(native, seed):
    draw = random.Random(seed)
    width, height = draw.choice([(500, 375), (draw.randint(1, 90), draw.randint(1, 90)), (draw.randint(1, 500), 300)])
    image = picture(width, height, seed)
    options = {"quality": draw.choice([5, 50, 75, 92, 100]), "optimize": draw.random() < 0.3}
    if draw.random() < 0.2:
        image = image.convert("L")
    else:
        options["subsampling"] = draw.choice(["4:4:4", "4:2:2", "4:2:0"])
    if draw.random() < 0.3 and not options["optimize"]:
        options[draw.choice(["restart_marker_rows", "restart_marker_blocks"])] = draw.choice([1, 2, 7])
    data = encoded(image, **options)
    settings = transformation(draw.choice([0, 0, 0, 1, 2]), draw.choice([224, 33, 8]), flip_probability=0.5)
    status, choice, out = decoded(native, data, settings, key=seed * 7919)
    assert status == FINE
    assert (out == reference(data, settings, choice)).all()


@pytest.mark.parametrize("sampling", ["440", "422", "420", "444"])
@pytest.mark.parametrize(("width", "height"), [(97, 61), (16, 16), (3, 5), (2, 9), (1, 1)])
def test_chroma_of_any_size_is_interpolated_as_libjpeg_does(native, sampling, width, height):
    pixels = np.ascontiguousarray(np.asarray(picture(width, height, 3)))
    data = simplejpeg.encode_jpeg(pixels, quality=90, colorsubsampling=sampling)
    settings = transformation(RANDOM_RESIZED_CROP, 48)
    for key in range(20):
        status, choice, out = decoded(native, data, settings, key)
        assert status == FINE
        assert (out == reference(data, settings, choice)).all()


def test_rgb_files_of_adobe_are_not_taken_for_ycbcr(native):
    data = encoded(picture(60, 40, 1), keep_rgb=True)
    status, choice, out = decoded(native, data, transformation())
    assert status == FINE
    assert (out == reference(data, transformation(), choice)).all()


@pytest.mark.parametrize(
    "data",
    [
        encoded(picture(64, 64, 1), progressive=True),
        encoded(picture(64, 64, 1).convert("CMYK")),
        simplejpeg.encode_jpeg(np.asarray(picture(64, 64, 1)), colorsubsampling="411"),
    ],
    ids=["progressive", "cmyk", "4:1:1"],
)
def test_other_kinds_of_jpeg_are_left_to_the_general_decoder(native, data):
    assert decoded(native, data, transformation())[0] == UNSUPPORTED


def test_an_image_over_the_limit_is_left_to_the_general_decoder(native):
    data = encoded(picture(64, 64, 1))
    assert decoded(native, data, transformation(most_pixels=64 * 64 - 1))[0] == UNSUPPORTED
    assert decoded(native, data, transformation(most_pixels=64 * 64))[0] == FINE


@pytest.mark.parametrize("cut", [0, 1, 2, 3, 20, 200, 400, 700])
def test_a_file_that_is_cut_short_is_refused(native, cut):
    data = encoded(picture(64, 64, 1))[:cut]
    assert len(data) == cut
    assert decoded(native, data, transformation())[0] == DAMAGED


def test_what_is_cut_off_below_the_window_does_not_matter(native):
    data = encoded(picture(64, 640, 1))
    settings = transformation(RANDOM_RESIZED_CROP, area_low=0.08, area_high=0.09)
    for key in range(100):
        _status, choice, out = decoded(native, data, settings, key)
        if choice.top + choice.height < 200:
            assert decoded(native, data[: len(data) // 2], settings, key)[0] == FINE
            assert (decoded(native, data[: len(data) // 2], settings, key)[2] == out).all()
            return
    raise AssertionError("no window in the upper third")


def test_an_enlarging_resize_of_a_huge_ratio_is_left_to_the_general_decoder(native):
    data = encoded(picture(3000, 1, 1))
    assert decoded(native, data, transformation(RESIZE_AND_CENTRE_CROP, 900))[0] == UNSUPPORTED


@pytest.mark.parametrize("channels_last", [0, 1])
def test_levels_become_what_the_table_says_in_either_layout(native, channels_last):
    data = encoded(picture(80, 50, 2))
    plain = decoded(native, data, transformation())[2]
    table = np.random.default_rng(0).normal(0, 1, (3, 256)).astype(np.float32)
    settings = transformation(pixels=1, channels_last=channels_last)
    for channel in range(3):
        settings.values[channel] = table[channel].ctypes.data
    out = np.zeros((64, 64, 3) if channels_last else (3, 64, 64), np.float32)
    assert native.image(settings, data, 1, out)[0] == FINE
    levels = out if channels_last else out.transpose(1, 2, 0)
    for channel in range(3):
        assert (levels[..., channel] == table[channel][plain[..., channel]]).all()
