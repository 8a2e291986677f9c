"""What happens to an image between the pack and the batch, as a list of steps with torchvision's v2 names and meaning.

    [RandomResizedCrop(224), RandomHorizontalFlip(), ColorJitter(0.4, 0.4, 0.4), Normalize(IMAGENET_MEAN, IMAGENET_STD)]

The steps are settings, not code: geometry is done by the threads that decode, image by image; rotation, jitter,
normalisation and mixing by torch on whole batches, on the device where there is one. So they come in that order, each
at most once; anything else is refused rather than reordered. Not for other transforms: those take `PackedDataset` and a
stock DataLoader.
"""

import math
from collections.abc import Callable, Sequence
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


Step = (
    RandomResizedCrop
    | Resize
    | CenterCrop
    | RandomCrop
    | RandomHorizontalFlip
    | RandomRotate90
    | ColorJitter
    | Normalize
    | MixUp
    | CutMix
)
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
        for step in self.steps:
            _check_step(step)
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
        if self.step(RandomRotate90) and self.size[0] != self.size[1]:
            raise TopoutError(
                f"Images of {self.size[0]} x {self.size[1]} cannot make quarter turns.",
                why="Turned images must have the shape of the others: they must be square.",
                do="give both sides one length, or leave RandomRotate90 out",
            )

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


def as_transform(steps: Any) -> ImageTransform:
    """Of a list of steps, or of a single one."""
    if isinstance(steps, ImageTransform):
        return steps
    return ImageTransform(tuple(steps) if isinstance(steps, (list, tuple)) else (steps,))


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


def _check_step(step: Any) -> None:
    for kinds, is_right, demand, example in _DEMANDS:
        if isinstance(step, kinds) and not is_right(step):
            raise TopoutError(f"{step} cannot be done.", why=f"{demand}.", do=f"for example {example}")
    if isinstance(step, ColorJitter):
        step.ranges()


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and value >= least


def _is_size(size: Any) -> bool:
    if isinstance(size, (list, tuple)):
        return len(size) == 2 and all(_is_whole(side, 1) for side in size)
    return _is_whole(size, 1)


def _numbers(values: Any) -> tuple[float, ...]:
    """What is there as finite numbers; nothing where anything else is among it."""
    try:
        numbers = tuple(float(value) for value in values)
    except (TypeError, ValueError):
        return ()
    return numbers if all(map(math.isfinite, numbers)) else ()


def _is_range(values: Any) -> bool:
    numbers = _numbers(values)
    return len(numbers) == 2 and 0 < numbers[0] <= numbers[1]


def _is_share(value: Any) -> bool:
    return any(0 <= number <= 1 for number in _numbers([value]))


def _is_normalisation(step: Normalize) -> bool:
    mean, std = _numbers(step.mean), _numbers(step.std)
    return len(mean) == len(std) == 3 and 0.0 not in std


def _is_mixing(step: MixUp | CutMix) -> bool:
    return _is_whole(step.num_classes, 1) and any(alpha > 0 for alpha in _numbers([step.alpha]))


_DEMANDS: tuple[tuple[tuple[type, ...], Callable[[Any], bool], str, str], ...] = (
    (
        (RandomResizedCrop, Resize, CenterCrop, RandomCrop),
        lambda step: _is_size(step.size),
        "A size is a whole number above 0, or (height, width) of such",
        "224 or (224, 320)",
    ),
    (
        (RandomResizedCrop,),
        lambda step: _is_range(step.scale) and _is_range(step.ratio),
        "Scale and ratio are (lowest, highest) each, above 0",
        "RandomResizedCrop(224, scale=(0.08, 1.0), ratio=(0.75, 1.33))",
    ),
    (
        (RandomCrop,),
        lambda step: _is_whole(step.padding, 0) and _is_whole(step.fill, 0) and step.fill <= 255,
        "Padding is a whole number, 0 or more, and fill a level from 0 to 255",
        "RandomCrop(32, padding=4)",
    ),
    (
        (RandomHorizontalFlip,),
        lambda step: _is_share(step.p),
        "p is a share from 0 to 1",
        "RandomHorizontalFlip(0.5)",
    ),
    (
        (Normalize,),
        _is_normalisation,
        "Mean and std are three numbers each, one a channel, and no std is 0",
        "Normalize((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))",
    ),
    (
        (MixUp, CutMix),
        _is_mixing,
        "The number of classes is a whole number above 0, alpha a number above 0",
        "MixUp(1000, alpha=0.2)",
    ),
)
"""Steps, what must hold of their numbers, how that is said, and what would do."""


def _factors(value: float | tuple[float, float], *, centre: float) -> tuple[float, float] | None:
    if isinstance(value, (int, float)):
        low, high = centre - value, centre + value
        low = max(low, 0.0) if centre else low
        is_wrong = value < 0
    else:
        # what is no pair of numbers is as wrong as a pair the wrong way round
        low, high = _numbers(value) if len(_numbers(value)) == 2 else (1.0, 0.0)
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
