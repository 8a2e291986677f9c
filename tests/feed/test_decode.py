"""Pixels: windows are resized as Pillow and torchvision do it, by the twin and by matrix products alike."""

import io

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.feed.image_packs import jpeg, photograph
from topout.epoch import randomness
from topout.feed.augment import CenterCrop, ImageTransform, RandomCrop, Resize, eval_images, train_images
from topout.feed.crop import Window, place
from topout.feed.decode import MOST_PIXELS, UnreadableImage, open_rgb, render
from topout.feed.device_decode import resize_windows


def slow_resize(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """A triangle filter as wide as the scale, one output pixel at a time; rounded once, at the end."""

    def axis(values: np.ndarray, num_out: int) -> np.ndarray:
        num_in = len(values)
        scale = num_in / num_out
        reach = max(scale, 1.0)
        rows = []
        for out in range(num_out):
            centre = (out + 0.5) * scale
            weights = np.maximum(0, 1 - np.abs(np.arange(num_in) + 0.5 - centre) / reach)
            rows.append(np.tensordot(weights / weights.sum(), values, axes=1))
        return np.stack(rows)

    across = axis(pixels.astype(np.float64).swapaxes(0, 1), width).swapaxes(0, 1)
    return axis(across, height)


@settings(deadline=None, max_examples=30)
@given(width=st.integers(1, 90), height=st.integers(1, 90), position=st.integers(0, 10**6))
def test_a_window_is_cut_out_then_resized_with_an_antialiased_filter(width: int, height: int, position: int) -> None:
    pixels = photograph(position % 50, width, height)
    transform = train_images(24)
    window = place(transform, width, height, randomness.key(0, 0, position))
    rendered = render(Image.fromarray(pixels), window, 24, 24)
    part = pixels[window.top : window.top + window.height, window.left : window.left + window.width]
    expected = slow_resize(part, 24, 24)
    if window.is_flipped:
        expected = expected[:, ::-1]
    # Pillow rounds after each of its two passes
    assert np.abs(rendered - expected).max() <= 1.01


@settings(deadline=None, max_examples=30)
@given(position=st.integers(0, 10**6), which=st.sampled_from(["train", "eval", "padded", "small"]))
def test_matrix_products_give_what_pillow_gives(position: int, which: str) -> None:
    transform = {
        "train": train_images(24),
        "eval": eval_images(30, 24),
        "padded": ImageTransform((RandomCrop(24, padding=4, fill=7),)),
        "small": ImageTransform((Resize((9, 11)), CenterCrop(24))),
    }[which]
    crop = transform.step(RandomCrop)
    fill = crop.fill if crop else 0
    shapes = [(40, 33), (64, 48), (31, 90)]
    images = [photograph(position % 50 + number, *shape) for number, shape in enumerate(shapes)]
    windows = [place(transform, *shape, randomness.key(1, 0, position + number)) for number, shape in enumerate(shapes)]
    tensors = [torch.from_numpy(image).permute(2, 0, 1) for image in images]
    together = resize_windows(tensors, windows, 24, 24, fill=fill)
    for row, (image, window) in enumerate(zip(images, windows, strict=True)):
        alone = render(Image.fromarray(image), window, 24, 24, fill)
        difference = np.abs(together[row].permute(1, 2, 0).numpy().astype(int) - alone)
        assert difference.max() <= 1
        assert difference.mean() < 0.3


def test_what_lies_outside_of_the_window_does_not_bleed_in() -> None:
    pixels = np.zeros((60, 60, 3), dtype=np.uint8)
    pixels[:, 30:] = 255
    window = Window(left=0, top=0, width=30, height=60, resized_width=10, resized_height=20)
    assert render(Image.fromarray(pixels), window, 20, 10).max() == 0


def test_a_padded_crop_is_filled_where_there_is_no_image() -> None:
    pixels = np.full((4, 4, 3), 9, dtype=np.uint8)
    window = Window(left=0, top=0, width=4, height=4, resized_width=4, resized_height=4, from_left=-1, from_top=2)
    expected = np.full((3, 3), 5)
    expected[:2, 1:] = 9
    assert render(Image.fromarray(pixels), window, 3, 3, fill=5)[:, :, 0].tolist() == expected.tolist()


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def test_images_of_every_kind_become_8_bit_rgb() -> None:
    grey = np.arange(256, dtype=np.uint8).reshape(16, 16)
    assert np.asarray(open_rgb(saved(Image.fromarray(grey), "PNG"), "grey"))[:, :, 2].tolist() == grey.tolist()
    deep = grey.astype(np.uint16) * 257
    assert np.asarray(open_rgb(saved(Image.fromarray(deep), "PNG"), "deep"))[:, :, 0].tolist() == grey.tolist()
    colours = Image.fromarray(photograph(1))
    printed = open_rgb(saved(colours.convert("CMYK"), "JPEG", quality=95), "printed")
    assert printed.mode == "RGB" and np.abs(np.asarray(printed).astype(int) - np.asarray(colours)).mean() < 6
    progressive = open_rgb(saved(colours, "JPEG", quality=90, progressive=True), "progressive")
    assert np.array_equal(np.asarray(progressive), np.asarray(open_rgb(jpeg(photograph(1)), "plain")))


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF", "BMP", "PPM", "GIF"])
def test_images_of_every_format_are_opened(kind: str) -> None:
    pixels = np.arange(256, dtype=np.uint8).reshape(16, 16)
    options = {"lossless": True} if kind == "WEBP" else {}
    data = saved(Image.fromarray(pixels).convert("P" if kind == "GIF" else "RGB"), kind, **options)
    assert np.asarray(open_rgb(data, "a"))[:, :, 1].tolist() == pixels.tolist()


def test_what_pillow_would_hand_to_another_program_is_no_image() -> None:
    """EPS is run by Ghostscript."""
    data = saved(Image.new("RGB", (4, 4)), "EPS")
    with pytest.raises(UnreadableImage) as caught:
        open_rgb(data, "a.jpg")
    assert "UnidentifiedImageError" in caught.value.why


def test_exif_rotation_is_left_alone() -> None:
    image = Image.fromarray(photograph(1, 40, 20))
    exif = image.getexif()
    exif[0x0112] = 6
    assert open_rgb(saved(image, "JPEG", exif=exif), "turned").size == (40, 20)


@pytest.mark.parametrize("data", [b"", b"no image", jpeg(photograph(0))[:300], b"\x89PNG\r\n\x1a\n" + b"\0" * 30])
def test_an_image_that_cannot_be_decoded_is_named(data: bytes) -> None:
    with pytest.raises(UnreadableImage, match=r"'cat/1\.jpg' cannot be decoded"):
        open_rgb(data, "cat/1.jpg")


def test_a_decompression_bomb_is_refused_before_it_is_decoded() -> None:
    side = int(MOST_PIXELS**0.5) + 10
    header = saved(Image.new("1", (1, 1)), "PNG")
    import struct
    import zlib

    size = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    bomb = header[:16] + size + struct.pack(">I", zlib.crc32(b"IHDR" + size)) + header[33:]
    with pytest.raises(UnreadableImage) as caught:
        open_rgb(bomb, "bomb.png")
    assert "DecompressionBombError" in caught.value.why
