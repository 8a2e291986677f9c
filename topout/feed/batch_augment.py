"""Steps on whole batches, in torch, on any device: quarter turns, colour jitter, normalisation, mix-up, cut-mix.

Torchvision v2's formulas, each image with its own random numbers (`randomness`), so that a result depends neither on
the batch around it nor on where it is computed; mix-up and cut-mix draw once for a batch, as there. Images are
(batch, 3, height, width), uint8 (0 to 255) or floating (0 to 1).
"""

import math
from typing import Any

import numpy as np

from topout.epoch import randomness
from topout.epoch.randomness import Uint64s
from topout.feed.augment import ColorJitter, CutMix, ImageTransform, MixUp, Normalize, RandomRotate90
from topout.feed.colours import adjust_brightness, adjust_contrast, adjust_hue, adjust_saturation

_ADJUST = (adjust_brightness, adjust_contrast, adjust_saturation, adjust_hue)


def finish_images(transform: ImageTransform, images: Any, keys: Uint64s, dtype: Any) -> Any:
    """Everything between decoding and mixing; `images` are uint8, the result is of torch's `dtype`."""
    import torch

    if transform.step(RandomRotate90):
        images = rotate(images, keys)
    if jitter := transform.step(ColorJitter):
        images = colour_jitter(jitter, images, keys)
    if dtype == torch.uint8:
        return images
    return normalise(images, transform.step(Normalize), dtype)


def mix(transform: ImageTransform, images: Any, labels: Any, keys: Uint64s) -> tuple[Any, Any]:
    """Mix-up or cut-mix where the transform has one; labels then become shares of classes."""
    key = int(keys[0]) if len(keys) else 0
    if step := transform.step(MixUp):
        return mix_up(step, images, labels, key)
    if step := transform.step(CutMix):
        return cut_mix(step, images, labels, key)
    return images, labels


def normalise(images: Any, normalize: Normalize | None, dtype: Any) -> Any:
    """uint8 to (x / 255 - mean) / std."""
    import torch

    scaled = images.to(torch.float32).div_(255)
    if normalize is not None:
        mean, std = (torch.tensor(part, device=images.device).view(3, 1, 1) for part in (normalize.mean, normalize.std))
        scaled = scaled.sub_(mean).div_(std)
    return scaled.to(dtype)


def rotate(images: Any, keys: Uint64s) -> Any:
    """Each image by its own number of quarter turns, counter-clockwise."""
    import torch

    turns = (randomness.uniforms(keys, randomness.ROTATION) * 4).astype(np.int64)
    out = images.clone()
    for number in (1, 2, 3):
        rows = torch.from_numpy(np.flatnonzero(turns == number)).to(images.device)
        if len(rows):
            out[rows] = torch.rot90(images[rows], number, dims=(-2, -1))
    return out


def jitter_parameters(jitter: ColorJitter, keys: Uint64s) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Per image the order of the four adjustments, and their factors; NaN stands for none."""
    draws = np.stack([randomness.uniforms(keys, randomness.JITTER_ORDER + number) for number in range(4)], axis=1)
    factors = np.full((len(keys), 4), np.nan)
    for number, span in enumerate(jitter.ranges()):
        if span is not None:
            draw = randomness.uniforms(keys, randomness.JITTER_FACTOR + number)
            factors[:, number] = span[0] + draw * (span[1] - span[0])
    return np.argsort(draws, axis=1, kind="stable"), factors


def colour_jitter(jitter: ColorJitter, images: Any, keys: Uint64s) -> Any:
    import torch

    order, factors = jitter_parameters(jitter, keys)
    active = [number for number, span in enumerate(jitter.ranges()) if span is not None]
    out = images.clone()
    for turn in range(4):
        for number in active:
            chosen = np.flatnonzero(order[:, turn] == number)
            if len(chosen):
                rows = torch.from_numpy(chosen).to(images.device)
                factor = torch.tensor(factors[chosen, number], dtype=torch.float64, device=images.device)
                out[rows] = _ADJUST[number](out[rows], factor.view(-1, 1, 1, 1))
    return out


def mix_up(step: MixUp, images: Any, labels: Any, key: int) -> tuple[Any, Any]:
    share = beta(key, step.alpha)
    mixed = _neighbours(images).mul_(1 - share).add_(images, alpha=share)
    return mixed, _mixed_labels(labels, step.num_classes, share)


def cut_mix(step: CutMix, images: Any, labels: Any, key: int) -> tuple[Any, Any]:
    left, top, right, bottom, share = cut_mix_box(step, images.shape[-1], images.shape[-2], key)
    out = images.clone()
    out[1:, :, top:bottom, left:right] = images[:-1, :, top:bottom, left:right]
    out[:1, :, top:bottom, left:right] = images[-1:, :, top:bottom, left:right]
    return out, _mixed_labels(labels, step.num_classes, share)


def cut_mix_box(step: CutMix, width: int, height: int, key: int) -> tuple[int, int, int, int, float]:
    """(left, top, right, bottom) of what the neighbour replaces, and the share of the image's own pixels left."""
    half = 0.5 * math.sqrt(1.0 - beta(key, step.alpha))
    x = int(randomness.uniform(key, randomness.BATCH) * width)
    y = int(randomness.uniform(key, randomness.BATCH + 1) * height)
    half_width, half_height = int(half * width), int(half * height)
    left, right = max(x - half_width, 0), min(x + half_width, width)
    top, bottom = max(y - half_height, 0), min(y + half_height, height)
    return left, top, right, bottom, 1.0 - (right - left) * (bottom - top) / (width * height)


def beta(key: int, alpha: float) -> float:
    """A draw of Beta(alpha, alpha), as the ratio of two gamma variates."""
    first, number = _gamma(key, alpha, randomness.BATCH + 2)
    second, _ = _gamma(key, alpha, number)
    return first / (first + second) if first + second > 0 else 0.5


def _gamma(key: int, alpha: float, number: int) -> tuple[float, int]:
    """A draw of Gamma(alpha) after Marsaglia and Tsang (2000), and the number of the next draw."""
    boost = 1.0
    if alpha < 1:
        boost = (1 - randomness.uniform(key, number)) ** (1 / alpha)
        alpha, number = alpha + 1, number + 1
    d = alpha - 1 / 3
    c = 1 / math.sqrt(9 * d)
    while True:
        # 1 - u lies in (0, 1], where the logarithm is finite
        radius = math.sqrt(-2 * math.log(1 - randomness.uniform(key, number)))
        normal = radius * math.cos(2 * math.pi * randomness.uniform(key, number + 1))
        u = 1 - randomness.uniform(key, number + 2)
        number += 3
        v = (1 + c * normal) ** 3
        if v > 0 and math.log(u) < normal * normal / 2 + d - d * v + d * math.log(v):
            return d * v * boost, number


def _mixed_labels(labels: Any, num_classes: int, share: float) -> Any:
    import torch

    shares = torch.nn.functional.one_hot(labels, num_classes).to(torch.float32) if labels.ndim == 1 else labels
    return shares.roll(1, 0).mul_(1 - share).add_(shares, alpha=share)


def _neighbours(images: Any) -> Any:
    """Each image's predecessor, the last one's for the first; unlike `roll`, channels stay last in memory."""
    import torch

    neighbours = torch.empty_like(images)
    neighbours[1:] = images[:-1]
    neighbours[:1] = images[-1:]
    return neighbours
