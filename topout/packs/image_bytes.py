"""Bytes opened as an image by Pillow, with those of its plug-ins that do nothing but decode pixels.

Data sets come from strangers, and some plug-ins start a program: EPS is run by Ghostscript.
"""

import io
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

_FORMATS = ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "PPM", "GIF", "JPEG2000")


def open_image(data: bytes | bytearray | memoryview) -> "Image":
    """Its header is read, its pixels are not; raises what Pillow raises."""
    from PIL import Image

    return Image.open(io.BytesIO(data), formats=_formats())


@cache
def _formats() -> tuple[str, ...]:
    """Pillow takes no name that it does not know, and has AVIF since 11.3."""
    return (*_FORMATS, "AVIF") if find_spec("PIL.AvifImagePlugin") else _FORMATS
