"""JPEGs decoded by the GPU (nvJPEG through torchvision), cut out and resized there for the whole batch at once.

A resize is two matrix products an image, with the weights of Pillow's triangle filter; on a GPU a batch of them costs
less than its decoding. Results differ from Pillow's by its rounding between the two passes and by nvJPEG's own
transform, about half a grey level on average. Not used unless torchvision is there and is measured to be faster.
"""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from topout.feed.augment import ImageTransform, RandomCrop
from topout.feed.crop import Window, place
from topout.feed.decode import open_rgb, render
from topout.feed.pipeline import BatchPlan

MOST_PADDED_BYTES = 256 << 20
"""Of images laid into one array of their largest size; larger batches go in parts."""
Named = tuple[str, Path]
"""An image's name and its pack, for the error."""


def is_available() -> bool:
    try:
        import torch

        _torchvision()
    except (ImportError, RuntimeError, OSError):
        return False
    return bool(torch.cuda.is_available())


def decode_batch(
    plan: BatchPlan, data: list[bytes], transform: ImageTransform, device: Any, names: Sequence[Named]
) -> Any:
    """uint8 images (batch, 3, height, width) on the device, channels last in memory."""
    import torch

    images = _decoded(data, device, names)
    windows = [
        place(transform, image.shape[-1], image.shape[-2], int(key))
        for image, key in zip(images, plan.keys, strict=True)
    ]
    height, width = transform.size
    crop = transform.step(RandomCrop)
    out = torch.empty((len(images), 3, height, width), dtype=torch.uint8, device=device)
    out = out.to(memory_format=torch.channels_last)
    by_size = sorted(range(len(windows)), key=lambda row: windows[row].width * windows[row].height)
    start = 0
    while start < len(by_size):
        rows = _part(by_size[start:], windows)
        start += len(rows)
        part = resize_windows([images[row] for row in rows], [windows[row] for row in rows], height, width,
                              fill=crop.fill if crop else 0)  # fmt: skip
        out[torch.tensor(rows, device=device)] = part
    return out


def resize_windows(images: list[Any], windows: list[Window], height: int, width: int, *, fill: int = 0) -> Any:
    """Windows of images of any size (3, h, w), uint8, resized to one size and flipped."""
    import torch

    device = images[0].device
    most_height, most_width = max(one.height for one in windows), max(one.width for one in windows)
    working = torch.float16 if device.type == "cuda" else torch.float32
    padded = torch.zeros((len(images), 3, most_height, most_width), dtype=torch.uint8, device=device)
    for row, (image, window) in enumerate(zip(images, windows, strict=True)):
        padded[row, :, : window.height, : window.width] = image[
            :, window.top : window.top + window.height, window.left : window.left + window.width
        ]
    down, missing_rows = _weights(
        [(one.height, one.resized_height, one.from_top) for one in windows], height, most_height, device
    )
    across, missing_columns = _weights(
        [(one.width, one.resized_width, one.from_left) for one in windows], width, most_width, device
    )
    # across first, as Pillow does; its rounding to whole levels in between is left out
    narrowed = torch.matmul(padded.to(working), across.to(working).transpose(1, 2)[:, None])
    resized = torch.matmul(down.to(working)[:, None], narrowed).to(torch.float32)
    result = resized.add_(0.5).clamp_(0, 255).to(torch.uint8)
    missing = missing_rows[:, None, :, None] | missing_columns[:, None, None, :]
    result = torch.where(missing, torch.full_like(result, fill), result)
    flipped = torch.tensor([one.is_flipped for one in windows], device=device)
    return torch.where(flipped[:, None, None, None], result.flip(-1), result)


def _weights(sizes: list[tuple[int, int, int]], num_out: int, num_in: int, device: Any) -> tuple[Any, Any]:
    """Weights (batch, out, in) of a triangle filter for (size, resized size, first output) of each image.

    Also which outputs lie outside of the resized image. A filter is as wide as the scale where an image shrinks, and
    its weights sum to one over the pixels there are.
    """
    import torch

    size, resized, first = (
        torch.tensor([one[part] for one in sizes], dtype=torch.float32, device=device).view(-1, 1, 1)
        for part in range(3)
    )
    scale = size / resized
    place_out = first + torch.arange(num_out, dtype=torch.float32, device=device).view(1, -1, 1)
    centre = (place_out + 0.5) * scale
    pixel = torch.arange(num_in, dtype=torch.float32, device=device).view(1, 1, -1)
    distance = (pixel + 0.5 - centre).abs() / scale.clamp(min=1.0)
    weights = (1.0 - distance).clamp_(min=0.0) * (pixel < size)
    missing = (place_out < 0) | (place_out >= resized)
    return weights / weights.sum(dim=-1, keepdim=True).clamp(min=1e-12), missing[:, :, 0]


def _part(rows: list[int], windows: list[Window]) -> list[int]:
    """The first rows, ascending in size, whose padded images stay within bounds."""
    most_height = most_width = 0
    for number, row in enumerate(rows):
        most_height = max(most_height, windows[row].height)
        most_width = max(most_width, windows[row].width)
        if number and (number + 1) * 3 * most_height * most_width > MOST_PADDED_BYTES:
            return rows[:number]
    return rows


def _decoded(data: list[bytes], device: Any, names: Sequence[Named]) -> list[Any]:
    """RGB images on the device. What the GPU does not take (PNG, CMYK, damaged) goes through Pillow, one by one."""
    import torch

    io = _torchvision()
    encoded = [torch.frombuffer(bytearray(one), dtype=torch.uint8) for one in data]
    try:
        images = io.decode_jpeg(encoded, mode=io.ImageReadMode.RGB, device=device)
    except RuntimeError:
        return [_decoded_alone(one, raw, device, name) for one, raw, name in zip(encoded, data, names, strict=True)]
    return list(images)


def _torchvision() -> Any:
    return import_module("torchvision.io")


def _decoded_alone(encoded: Any, raw: bytes, device: Any, name: Named) -> Any:
    import numpy as np
    import torch

    io = _torchvision()
    try:
        return io.decode_jpeg(encoded, mode=io.ImageReadMode.RGB, device=device)
    except RuntimeError:
        image = open_rgb(raw, *name)
        whole = Window(left=0, top=0, width=image.width, height=image.height,
                       resized_width=image.width, resized_height=image.height)  # fmt: skip
        pixels = render(image, whole, image.height, image.width)
        return torch.from_numpy(np.array(pixels)).permute(2, 0, 1).to(device)
