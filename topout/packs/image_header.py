"""What the first bytes of an image say: its format, size, and whether the quick decoder is made for it.

Reads headers only; whether the rest decodes, `--check-images` tells. The pixel limit guards against files of a few
bytes that ask for all memory when decoded.
"""

import struct
from dataclasses import dataclass

from topout.packs.layout import RowFlag

MOST_PIXELS = 178_956_970
"""As Pillow's: a quarter of a gibibyte in three bytes a pixel, and twice."""
_PNG = b"\x89PNG\r\n\x1a\n"
_STANDALONE = {0x01, *range(0xD0, 0xD9)}
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
_SEQUENTIAL_HUFFMAN = (0xC0, 0xC1)


@dataclass(frozen=True, kw_only=True)
class ImageHeader:
    format: str
    width: int
    height: int
    is_plain: bool
    """An 8-bit sequential JPEG, grey or YCbCr, which the native decoder takes."""
    orientation: int = 1
    """EXIF's, 1 to 8."""

    @property
    def flags(self) -> int:
        general = 0 if self.is_plain else RowFlag.GENERAL_DECODER
        return int(general | (RowFlag.ROTATED if self.orientation != 1 else 0))


def image_flags(data: bytes) -> int:
    """Raises ValueError for bytes that are no image."""
    return read_image_header(data).flags


def read_image_header(data: bytes) -> ImageHeader:
    """Of a JPEG or PNG, told apart by their first bytes, whatever the file is called. Raises ValueError, saying why."""
    if not data:
        raise ValueError("it is empty")
    if data[:2] == b"\xff\xd8":
        header = _read_jpeg(data)
    elif data[:8] == _PNG:
        header = _read_png(data)
    else:
        raise ValueError("it begins neither as a JPEG nor as a PNG")
    if header.width * header.height > MOST_PIXELS:
        size = f"{header.width} x {header.height}"
        raise ValueError(f"it claims {size} pixels; above {MOST_PIXELS} is taken for a decompression bomb")
    return header


def _read_png(data: bytes) -> ImageHeader:
    if len(data) < 33 or data[12:16] != b"IHDR":
        raise ValueError("its PNG header is cut short")
    width, height = struct.unpack_from(">II", data, 16)
    if not width or not height:
        raise ValueError("its PNG header gives no size")
    return ImageHeader(format="png", width=width, height=height, is_plain=False)


def _read_jpeg(data: bytes) -> ImageHeader:
    position, orientation, adobe_transform = 2, 1, None
    while position + 4 <= len(data):
        if data[position] != 0xFF:
            raise ValueError("its JPEG header is broken")
        marker = data[position + 1]
        if marker == 0xFF:
            position += 1
            continue
        if marker in _STANDALONE:
            position += 2
            continue
        length = int.from_bytes(data[position + 2 : position + 4], "big")
        segment = data[position + 4 : position + 2 + length]
        if marker in _FRAMES:
            return _frame(marker, segment, orientation, adobe_transform)
        if marker == 0xDA:
            break
        if marker == 0xE1 and segment[:6] == b"Exif\0\0":
            orientation = _orientation(segment[6:])
        elif marker == 0xEE and segment[:5] == b"Adobe" and len(segment) >= 12:
            adobe_transform = segment[11]
        position += 2 + length
    raise ValueError("its JPEG header ends before it gives a size")


def _frame(marker: int, segment: bytes, orientation: int, adobe_transform: int | None) -> ImageHeader:
    if len(segment) < 6:
        raise ValueError("its JPEG header is cut short")
    precision, height, width, num_components = struct.unpack_from(">BHHB", segment)
    if not width or not height:
        raise ValueError("its JPEG header gives no size")
    identifiers = segment[6 : 6 + 3 * num_components : 3]
    is_rgb = num_components == 3 and (adobe_transform == 0 or (adobe_transform is None and identifiers == b"RGB"))
    return ImageHeader(
        format="jpeg",
        width=width,
        height=height,
        is_plain=marker in _SEQUENTIAL_HUFFMAN and precision == 8 and num_components in (1, 3) and not is_rgb,
        orientation=orientation,
    )


def _orientation(tiff: bytes) -> int:
    """Tag 0x0112 of the first directory; 1 where it is missing or makes no sense."""
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None or len(tiff) < 8:
        return 1
    (start,) = struct.unpack_from(f"{order}I", tiff, 4)
    if start + 2 > len(tiff):
        return 1
    (num_entries,) = struct.unpack_from(f"{order}H", tiff, start)
    for entry in range(num_entries):
        place = start + 2 + 12 * entry
        if place + 12 > len(tiff):
            return 1
        tag, kind = struct.unpack_from(f"{order}HH", tiff, place)
        if tag == 0x0112 and kind == 3:
            (value,) = struct.unpack_from(f"{order}H", tiff, place + 8)
            return value if 1 <= value <= 8 else 1
    return 1
