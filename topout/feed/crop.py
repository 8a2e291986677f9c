"""Which part of an image becomes the sample: a pure function of its size and its random numbers.

Torchvision v2's formulas for RandomResizedCrop, Resize, CenterCrop and RandomCrop, with the draws of `randomness`. A
window is cut out first and then resized, so that pixels outside never bleed into its edge (Pillow's `resize(box=...)`
lets them). Rounding is to the nearest even number, as Python's `round` and C's `rint` do it.
"""

import math
from dataclasses import dataclass

from topout.epoch import randomness
from topout.feed.augment import CenterCrop, ImageTransform, RandomCrop, RandomResizedCrop, Resize, pair
from topout.schema.errors import TopoutError

NUM_TRIES = 10


@dataclass(frozen=True, kw_only=True)
class Window:
    """A part of the source, the size it is resized to, and where in that the result begins."""

    left: int
    top: int
    width: int
    height: int
    resized_width: int
    resized_height: int
    from_left: int = 0
    """Negative where the result begins before the resized image: there it is filled."""
    from_top: int = 0
    is_flipped: bool = False


def place(transform: ImageTransform, width: int, height: int, key: int) -> Window:
    """The window of one image of the given size."""
    share = transform.flip_share
    is_flipped = share > 0 and randomness.uniform(key, randomness.FLIP) < share
    if crop := transform.step(RandomResizedCrop):
        left, top, crop_width, crop_height = random_resized_crop(crop, width, height, key)
        out_height, out_width = transform.size
        return Window(
            left=left, top=top, width=crop_width, height=crop_height,
            resized_width=out_width, resized_height=out_height, is_flipped=is_flipped,
        )  # fmt: skip
    resized_width, resized_height = resized_size(transform.step(Resize), width, height)
    from_left, from_top = _beginning(transform, resized_width, resized_height, key)
    return Window(
        left=0, top=0, width=width, height=height, resized_width=resized_width, resized_height=resized_height,
        from_left=from_left, from_top=from_top, is_flipped=is_flipped,
    )  # fmt: skip


def random_resized_crop(crop: RandomResizedCrop, width: int, height: int, key: int) -> tuple[int, int, int, int]:
    """(left, top, width, height)."""
    (smallest, largest), (narrow, wide) = crop.scale, crop.ratio
    log_narrow, log_wide = math.log(narrow), math.log(wide)
    for number in range(NUM_TRIES):
        draw = randomness.CROP_TRY + 2 * number
        area = width * height * (smallest + randomness.uniform(key, draw) * (largest - smallest))
        ratio = math.exp(log_narrow + randomness.uniform(key, draw + 1) * (log_wide - log_narrow))
        crop_width, crop_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < crop_width <= width and 0 < crop_height <= height:
            top = int(randomness.uniform(key, randomness.CROP_TOP) * (height - crop_height + 1))
            left = int(randomness.uniform(key, randomness.CROP_LEFT) * (width - crop_width + 1))
            return left, top, crop_width, crop_height
    # no try fitted: the largest middle part within the allowed ratios, and a pixel of a line too thin for them
    if width / height < narrow:
        crop_width, crop_height = width, max(1, round(width / narrow))
    elif width / height > wide:
        crop_width, crop_height = max(1, round(height * wide)), height
    else:
        crop_width, crop_height = width, height
    return (width - crop_width) // 2, (height - crop_height) // 2, crop_width, crop_height


def resized_size(resize: Resize | None, width: int, height: int) -> tuple[int, int]:
    """(width, height) after a Resize."""
    if resize is None:
        return width, height
    if not isinstance(resize.size, int):
        new_height, new_width = pair(resize.size)
        return new_width, new_height
    short, long = min(width, height), max(width, height)
    new_short, new_long = resize.size, int(resize.size * long / short)
    return (new_short, new_long) if width <= height else (new_long, new_short)


def _beginning(transform: ImageTransform, width: int, height: int, key: int) -> tuple[int, int]:
    """Where the result begins in a resized image of this size, (left, top)."""
    out_height, out_width = transform.size
    if transform.step(CenterCrop):
        return _centred(width, out_width), _centred(height, out_height)
    if crop := transform.step(RandomCrop):
        free_width, free_height = width + 2 * crop.padding - out_width, height + 2 * crop.padding - out_height
        if free_width < 0 or free_height < 0:
            raise TopoutError(
                f"An image of {height} x {width} is too small for a random crop of {out_height} x {out_width}.",
                why=f"With a padding of {crop.padding} it still is smaller than the crop.",
                do="resize first, pad more, or pack with --resize",
            )
        left = int(randomness.uniform(key, randomness.CROP_LEFT) * (free_width + 1))
        top = int(randomness.uniform(key, randomness.CROP_TOP) * (free_height + 1))
        return left - crop.padding, top - crop.padding
    return 0, 0


def _centred(size: int, wanted: int) -> int:
    return -((wanted - size) // 2) if wanted > size else round((size - wanted) / 2)
