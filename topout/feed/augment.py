"""What happens to an image between the pack and the batch, as a list of steps with torchvision's v2 names and meaning.

    [RandomResizedCrop(224), RandomHorizontalFlip(), ColorJitter(0.4, 0.4, 0.4), Normalize(IMAGENET_MEAN, IMAGENET_STD)]

The steps are settings, not code: geometry is done by the threads that decode, image by image; rotation, jitter,
normalisation and mixing by torch on whole batches, on the device where there is one. So they come in that order, each
at most once; anything else is refused rather than reordered. Not for other transforms: those take `PackedDataset` and a
stock DataLoader.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from topout.schema.errors import TopoutError

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
Size = int | tuple[int, int]
"""A square's side, or (height, width)."""


@dataclass(frozen=True)
class RandomResizedCrop:
    """A random part of the image, of random area and ratio, resized to one size."""

    size: Size
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)


@dataclass(frozen=True)
class Resize:
    """An int is the length of the short side, (height, width) is the size whatever the ratio was."""

    size: Size


@dataclass(frozen=True)
class CenterCrop:
    """The middle; where the image is smaller, black around it."""

    size: Size


@dataclass(frozen=True)
class RandomCrop:
    """Any part of the image with `padding` pixels of `fill` on each side. Nothing is resized."""

    size: Size
    padding: int = 0
    fill: int = 0


@dataclass(frozen=True)
class RandomHorizontalFlip:
    """Left and right change places in the share `p` of the images."""

    p: float = 0.5


@dataclass(frozen=True)
class RandomRotate90:
    """A quarter turn counter-clockwise, 0 to 3 times, all equally probable. For square images; not in torchvision."""


@dataclass(frozen=True)
class ColorJitter:
    """Brightness, contrast, saturation and hue changed by random factors, in random order, image by image.

    A number x stands for factors from max(0, 1 - x) to 1 + x, for hue from -x to x with x at most 0.5.
    """

    brightness: float | tuple[float, float] = 0.0
    contrast: float | tuple[float, float] = 0.0
    saturation: float | tuple[float, float] = 0.0
    hue: float | tuple[float, float] = 0.0

    def ranges(self) -> tuple[tuple[float, float] | None, ...]:
        """Of brightness, contrast, saturation, hue; None leaves one alone."""
        given = (self.brightness, self.contrast, self.saturation, self.hue)
        return tuple(_factors(value, centre=0.0 if number == 3 else 1.0) for number, value in enumerate(given))


@dataclass(frozen=True)
class Normalize:
    """(x / 255 - mean) / std in each channel; `uint8` batches are left as they are."""

    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD


@dataclass(frozen=True)
class MixUp:
    """Each image blended with its neighbour in the batch; labels become shares of `num_classes` classes."""

    num_classes: int
    alpha: float = 1.0


@dataclass(frozen=True)
class CutMix:
    """A rectangle of each image replaced by its neighbour's; labels become shares of `num_classes` classes."""

    num_classes: int
    alpha: float = 1.0


_FLOORS: tuple[tuple[type, ...], ...] = (
    (RandomResizedCrop, Resize),
    (CenterCrop, RandomCrop),
    (RandomHorizontalFlip,),
    (RandomRotate90,),
    (ColorJitter,),
    (Normalize,),
    (MixUp, CutMix),
)
"""Steps of one tuple exclude each other; tuples come in this order."""


@dataclass(frozen=True)
class ImageTransform:
    """A checked list of steps, taken apart into what decoders and batches need."""

    steps: tuple[Any, ...]

    def __post_init__(self) -> None:
        floors = [_floor(step) for step in self.steps]
        if floors != sorted(set(floors)):
            raise TopoutError(
                f"These steps cannot come in this order: {_listed(self.steps)}",
                why="Geometry is done while decoding, the rest on whole batches, each step at most once.",
                do="order them: " + ", ".join(" or ".join(step.__name__ for step in floor) for floor in _FLOORS),
            )
        if self.step(RandomResizedCrop) and self.step(CenterCrop, RandomCrop):
            raise TopoutError(
                f"Two crops in one list: {_listed(self.steps)}",
                why="A random resized crop has its final size already.",
                do="take one of them out",
            )
        if _size_of(self.steps) is None:
            raise TopoutError(
                f"These steps give images of different sizes: {_listed(self.steps)}",
                why="A batch is one array. Resize(int) fixes the short side alone.",
                do="add RandomResizedCrop, CenterCrop or RandomCrop, or give Resize a height and a width",
            )
        _check_values(self)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the result."""
        size = _size_of(self.steps)
        assert size is not None
        return size

    def step(self, *kinds: type) -> Any:
        """The step of one of these kinds, or None."""
        return next((step for step in self.steps if isinstance(step, kinds)), None)

    @property
    def flip_share(self) -> float:
        flip = self.step(RandomHorizontalFlip)
        return float(flip.p) if flip else 0.0

    @property
    def on_batches(self) -> tuple[Any, ...]:
        """Steps that need the whole batch, normalisation aside."""
        return tuple(step for step in self.steps if isinstance(step, (RandomRotate90, ColorJitter, MixUp, CutMix)))


def train_images(size: Size = 224, *more: Any) -> ImageTransform:
    """The usual of training on photographs: random resized crop, flip, ImageNet's normalisation, and `more` steps."""
    own = [RandomResizedCrop(size), RandomHorizontalFlip(), Normalize()]
    kinds = {type(step) for step in more}
    return as_transform(sorted([step for step in own if type(step) not in kinds] + list(more), key=_floor))


def eval_images(short_side: int = 256, size: Size = 224) -> ImageTransform:
    """The usual of evaluating: short side resized, middle cut out, ImageNet's normalisation."""
    return as_transform([Resize(short_side), CenterCrop(size), Normalize()])


def as_transform(steps: "ImageTransform | Sequence[Any]") -> ImageTransform:
    return steps if isinstance(steps, ImageTransform) else ImageTransform(tuple(steps))


def pair(size: Size) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))


def _floor(step: Any) -> int:
    for number, kinds in enumerate(_FLOORS):
        if isinstance(step, kinds):
            return number
    raise TopoutError(
        f"{type(step).__name__} is no step of topout's loader.",
        why="The loader's steps run without Python; it knows those of topout.feed.augment.",
        do="for any other transform use topout.PackedDataset(path, transform=...) with a torch DataLoader",
    )


def _size_of(steps: Sequence[Any]) -> tuple[int, int] | None:
    for step in reversed(steps):
        if isinstance(step, (RandomResizedCrop, CenterCrop, RandomCrop)):
            return pair(step.size)
        if isinstance(step, Resize):
            return pair(step.size) if not isinstance(step.size, int) else None
    return None


def _check_values(transform: ImageTransform) -> None:
    height, width = transform.size
    crop, flip = transform.step(RandomResizedCrop), transform.step(RandomHorizontalFlip)
    wrong = None
    if min(height, width) < 1:
        wrong = f"an image of {height} x {width}"
    elif crop and not (0 < crop.scale[0] <= crop.scale[1] and 0 < crop.ratio[0] <= crop.ratio[1]):
        wrong = f"{crop}: scale and ratio are (lowest, highest), above 0"
    elif flip and not 0 <= flip.p <= 1:
        wrong = f"{flip}: p is a share from 0 to 1"
    elif transform.step(RandomRotate90) and height != width:
        wrong = f"quarter turns of images of {height} x {width}: they must be square"
    if wrong:
        raise TopoutError(f"This cannot be done: {wrong}.", why="No image fits such a step.", do="change its numbers")
    if jitter := transform.step(ColorJitter):
        jitter.ranges()


def _factors(value: float | tuple[float, float], *, centre: float) -> tuple[float, float] | None:
    if isinstance(value, (int, float)):
        low, high = centre - value, centre + value
        low = max(low, 0.0) if centre else low
        is_wrong = value < 0
    else:
        low, high = value
        is_wrong = low > high
    if is_wrong or (centre and low < 0) or (not centre and (low < -0.5 or high > 0.5)):
        raise TopoutError(
            f"ColorJitter cannot vary by {value!r}.",
            why="Factors are 0 or more, hue lies from -0.5 to 0.5, and ranges are (lowest, highest).",
            do="for example ColorJitter(0.4, 0.4, 0.4, 0.1)",
        )
    return None if low == high == centre else (float(low), float(high))


def _listed(steps: Sequence[Any]) -> str:
    return ", ".join(type(step).__name__ for step in steps) or "none"
