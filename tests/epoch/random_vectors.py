"""Values to check another implementation of the draws and crops against; run as a script it writes them anew."""

import json
from pathlib import Path

from topout.epoch import randomness
from topout.feed.augment import ImageTransform, RandomHorizontalFlip, RandomResizedCrop
from topout.feed.crop import place

VECTORS = Path(__file__).with_name("random_vectors.json")
_PLACES = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (42, 7, 123_456_789), (-1, 3, 2**40), (2**64 - 1, 3, 2**40)]
_SIZES = [(500, 375), (375, 500), (224, 224), (1, 1), (3, 2), (4000, 11), (11, 4000), (96, 72)]


def draws() -> list[dict[str, object]]:
    found = []
    for seed, epoch, position in _PLACES:
        key = randomness.key(seed, epoch, position)
        numbers = [randomness.uniform(key, number) for number in range(4)]
        found.append({"seed": seed, "epoch": epoch, "position": position, "key": f"{key:#018x}", "uniforms": numbers})
    return found


def crops() -> list[dict[str, object]]:
    """Windows of RandomResizedCrop(224) with a flip of 0.5; the long ones never fit and take the middle."""
    transform = ImageTransform((RandomResizedCrop(224), RandomHorizontalFlip()))
    found = []
    for width, height in _SIZES:
        for position in range(8):
            key = randomness.key(9, 2, position)
            window = place(transform, width, height, key)
            found.append({
                "key": f"{key:#018x}", "image": [width, height],
                "window": [window.left, window.top, window.width, window.height], "flip": window.is_flipped,
            })  # fmt: skip
    return found


if __name__ == "__main__":
    VECTORS.write_text(json.dumps({"draws": draws(), "crops": crops()}, indent=1) + "\n")
