"""Images of 16 bits a pixel, brought to 8 bits: the upper ones. Pillow's own conversion makes all above 255 white."""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image


def is_deep(image: "Image") -> bool:
    return image.mode.startswith("I;16") or image.mode == "I"


def upper_bits(image: "Image") -> "Image":
    """Of a deep image, as 8-bit grey."""
    from PIL import Image as Images

    return Images.fromarray((np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8))
