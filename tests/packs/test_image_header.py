"""Headers of images: sizes, and which the quick decoder is not made for, told from real files of each kind."""

import io
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.packs.packs import jpeg
from topout.packs.image_header import read_image_header
from topout.packs.layout import RowFlag


def saved(image, form, **options):
    target = io.BytesIO()
    image.save(target, form, **options)
    return target.getvalue()


RGB = Image.fromarray(np.arange(30 * 40 * 3, dtype=np.uint32).astype(np.uint8).reshape(30, 40, 3))


def turned(orientation, order):
    exif = Image.Exif()
    exif[0x0112] = orientation
    exif.endian = order
    return saved(RGB, "JPEG", exif=exif.tobytes())


@pytest.mark.parametrize(
    ("data", "form", "is_plain"),
    [
        (saved(RGB, "JPEG"), "jpeg", True),
        (saved(RGB, "JPEG", subsampling=0), "jpeg", True),
        (saved(RGB.convert("L"), "JPEG"), "jpeg", True),
        (saved(RGB, "JPEG", progressive=True), "jpeg", False),
        (saved(RGB.convert("CMYK"), "JPEG"), "jpeg", False),
        (saved(RGB, "JPEG", keep_rgb=True), "jpeg", False),
        (saved(RGB, "PNG"), "png", False),
        (saved(Image.fromarray(np.zeros((30, 40), np.uint16)), "PNG"), "png", False),
    ],
    ids=["plain", "4:4:4", "grey", "progressive", "cmyk", "rgb", "png", "16 bit"],
)
def test_the_kind_of_image_is_told(data, form, is_plain):
    header = read_image_header(data)
    assert (header.format, header.width, header.height, header.is_plain) == (form, 40, 30, is_plain)
    assert header.flags == (0 if is_plain else RowFlag.GENERAL_DECODER)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("order", ["<", ">"])
def test_exif_orientation_is_told(orientation, order):
    header = read_image_header(turned(orientation, order))
    assert header.orientation == orientation
    assert header.flags == (RowFlag.ROTATED if orientation != 1 else 0)


def test_a_progressive_turned_image_has_both_flags():
    exif = Image.Exif()
    exif[0x0112] = 6
    data = saved(RGB, "JPEG", progressive=True, exif=exif.tobytes())
    assert read_image_header(data).flags == RowFlag.GENERAL_DECODER | RowFlag.ROTATED == 3


def test_the_size_that_is_a_bomb_is_named():
    data = bytearray(saved(RGB, "PNG"))
    struct.pack_into(">II", data, 16, 100_000, 100_000)
    with pytest.raises(ValueError, match="100000 x 100000 pixels; above 178956970 is taken for a decompression bomb"):
        read_image_header(bytes(data))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "empty"),
        (b"GIF89a", "neither"),
        (jpeg()[:3], "ends before"),
        (b"\xff\xd8\xff\xc0\0\x04\x08\0", "cut short"),
        (b"\xff\xd8\xff\xc0\0\x0b\x08\0\0\0\0\x03\0\0\0", "no size"),
        (b"\xff\xd8abcdef", "broken"),
        (b"\x89PNG\r\n\x1a\n" + bytes(8), "cut short"),
        (b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + bytes(20), "no size"),
    ],
)
def test_what_is_no_image_is_said(data, why):
    with pytest.raises(ValueError, match=why):
        read_image_header(data)


@given(data=st.binary(max_size=200), start=st.sampled_from([b"", b"\xff\xd8", jpeg()[:200], turned(6, "<")[:120]]))
def test_no_bytes_make_it_fail_otherwise(data, start):
    try:
        header = read_image_header(start + data)
    except ValueError:
        return
    assert header.width > 0
    assert header.height > 0
    assert 1 <= header.orientation <= 8
