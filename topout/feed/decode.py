"""Images out of bytes with Pillow: what the native pipeline does, in Python, for whatever it does not take.

Always works, on several threads at once since Pillow lets go of the interpreter lock while it decodes and resizes.
EXIF rotation is not applied, as in torchvision's ImageFolder. 16-bit images keep their upper 8 bits (plain conversion
would make everything above 255 white).
"""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from topout.feed.crop import Window
from topout.feed.staging.origin import is_remote
from topout.packs.deep_image import is_deep, upper_bits
from topout.packs.image_bytes import open_image
from topout.schema.errors import ExitCode, TopoutError

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_PIXELS = 178_956_970
"""Larger images are refused as decompression bombs; Pillow's own limit of errors."""


class UnreadableImage(TopoutError):  # noqa: N818 (named for the state it reports)
    """Bytes that are what was packed, and yet no image that can be decoded."""


def open_rgb(data: bytes | bytearray | memoryview, name: str, pack: str | Path = "PACK") -> "Image":
    """The image as 8-bit RGB; `name` and `pack` are for the error."""
    from PIL import Image

    try:
        with warnings.catch_warnings():
            # the limit below is the one that counts
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = open_image(data)
        if image.width * image.height > MOST_PIXELS:
            raise Image.DecompressionBombError(f"{image.width} x {image.height} pixels")
        if is_deep(image):
            return upper_bits(image).convert("RGB")
        return image.convert("RGB")
    except MemoryError:
        raise
    except Exception as error:
        raise UnreadableImage(
            f"The image {name!r} cannot be decoded.",
            why=f"{type(error).__name__}: {error}",
            do="on_damage='skip' in topout.Loader goes on without it; for a pack without such images: "
            f"topout pack {'SRC' if is_remote(pack) else pack} NEW --check-images --on-error skip",
            exit_code=ExitCode.ENVIRONMENT,
        ) from error


def render(image: "Image", window: Window, height: int, width: int, fill: int = 0) -> npt.NDArray[np.uint8]:
    """The window of an RGB image, resized with an antialiased triangle filter: (height, width, 3)."""
    from PIL import Image as Images

    if (window.left, window.top, window.width, window.height) != (0, 0, *image.size):
        image = image.crop((window.left, window.top, window.left + window.width, window.top + window.height))
    if image.size != (window.resized_width, window.resized_height):
        # across first, then down: Pillow 13 may choose the other order, which rounds otherwise
        image = image.resize((window.resized_width, image.height), Images.Resampling.BILINEAR)
        image = image.resize((window.resized_width, window.resized_height), Images.Resampling.BILINEAR)
    if (window.from_left, window.from_top, *image.size) != (0, 0, width, height):
        canvas = Images.new("RGB", (width, height), (fill, fill, fill))
        canvas.paste(image, (-window.from_left, -window.from_top))
        image = canvas
    if window.is_flipped:
        image = image.transpose(Images.Transpose.FLIP_LEFT_RIGHT)
    return np.asarray(image)
