"""Brightness, contrast, saturation and hue of batches of images, with torchvision's arithmetic.

`factor` has one float64 an image, shaped (batch, 1, 1, 1); 1 - factor is taken before rounding to float32, as there,
or levels that come out whole would be cut off one too low. uint8 results are cut off, not rounded; hue goes through HSV
in float32 and may differ from torchvision's by one level.
"""

from typing import Any

_LUMA = (0.2989, 0.587, 0.114)
_JUST_BELOW_256 = 255 + 1.0 - 1e-3
"""Scales [0, 1] to levels so that each gets an equal part."""


def adjust_brightness(images: Any, factor: Any) -> Any:
    return _levels(images, images * factor.float())


def adjust_contrast(images: Any, factor: Any) -> Any:
    """Towards the mean of the image's grey values."""
    mean = _grey(images).mean(dim=(-3, -2, -1), keepdim=True)
    return _levels(images, images * factor.float() + mean * (1.0 - factor).float())


def adjust_saturation(images: Any, factor: Any) -> Any:
    """Towards each pixel's grey value."""
    return _levels(images, images * factor.float() + _grey(images) * (1.0 - factor).float())


def adjust_hue(images: Any, factor: Any) -> Any:
    """`factor` is a share of the colour circle."""
    import torch

    is_floating = images.is_floating_point()
    rgb = images if is_floating else images.to(torch.float32) / 255
    hue, saturation, value = _hsv(rgb)
    turned = _rgb((hue + factor.float()) % 1.0, saturation, value)
    return turned if is_floating else (turned * _JUST_BELOW_256).to(images.dtype)


def _levels(images: Any, changed: Any) -> Any:
    if images.is_floating_point():
        return changed.clamp_(0, 1)
    return changed.clamp_(0, 255).to(images.dtype)


def _grey(images: Any) -> Any:
    red, green, blue = (images[:, channel : channel + 1] for channel in range(3))
    grey = red * _LUMA[0] + green * _LUMA[1] + blue * _LUMA[2]
    return grey if images.is_floating_point() else grey.floor_()


def _hsv(rgb: Any) -> tuple[Any, Any, Any]:
    """Hue in [0, 1), saturation and value, each (batch, 1, height, width)."""
    import torch

    red, green, blue = (rgb[:, channel : channel + 1] for channel in range(3))
    value, lowest = rgb.amax(dim=1, keepdim=True), rgb.amin(dim=1, keepdim=True)
    spread = value - lowest
    is_grey = spread == 0
    divisor = torch.where(is_grey, torch.ones_like(spread), spread)
    sixth = torch.where(
        value == red,
        (green - blue) / divisor,
        torch.where(value == green, 2.0 + (blue - red) / divisor, 4.0 + (red - green) / divisor),
    )
    hue = torch.where(is_grey, torch.zeros_like(sixth), (sixth / 6.0) % 1.0)
    saturation = spread / torch.where(is_grey, torch.ones_like(value), value)
    return hue, saturation, value


def _rgb(hue: Any, saturation: Any, value: Any) -> Any:
    """Each channel is the value less what the hue's distance takes: v - v s max(0, min(k, 4 - k, 1))."""
    import torch

    channels = []
    for offset in (5.0, 3.0, 1.0):
        k = (offset + hue * 6.0) % 6.0
        channels.append(value - value * saturation * torch.minimum(k, 4.0 - k).clamp(0.0, 1.0))
    return torch.cat(channels, dim=1)
