"""ResNet-50 v1.5 in plain torch, with torchvision's names and shapes, so that its weights load: 25.557 M parameters.

`folded_stem` computes the first convolution in another order, from the same weights: tensor cores are made for
channels in multiples of eight, and images have three. 2x2 pixels become 12 channels, with zeros 16, and 7x7 taps with
stride 2 become 4x4 taps with stride 1. Equal up to the rounding of sums.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional


def fold(images: Tensor, weight: Tensor, to: int = 12) -> tuple[Tensor, Tensor]:
    """Images and weights whose plain convolution is that of 7x7 taps, stride 2 and padding 3; height and width even."""
    batch, channels, height, width = images.shape
    # out[i] = sum of w[k] * x[2i + k - 3]; with a zero in front, k + 1 = 2a + b and x[2(i + a - 2) + b]
    pairs = images.reshape(batch, channels, height // 2, 2, width // 2, 2).permute(0, 1, 3, 5, 2, 4)
    zeros = to - channels * 4
    folded = functional.pad(pairs.reshape(batch, -1, height // 2, width // 2), (2, 1, 2, 1, 0, zeros))
    taps = functional.pad(weight, (1, 0, 1, 0)).reshape(-1, channels, 4, 2, 4, 2).permute(0, 1, 3, 5, 2, 4)
    taps = functional.pad(taps.reshape(-1, channels * 4, 4, 4), (0, 0, 0, 0, 0, zeros))
    last = torch.channels_last
    return folded.contiguous(memory_format=last), taps.contiguous(memory_format=last)


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions around a shortcut; the 3x3 one has the stride (v1.5)."""

    def __init__(self, inputs: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.downsample = None
        if stride != 1 or inputs != 4 * width:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        out = functional.relu(self.bn1(self.conv1(x)), inplace=True)
        out = functional.relu(self.bn2(self.conv2(out)), inplace=True)
        return functional.relu(self.bn3(self.conv3(out)) + shortcut, inplace=True)


class ResNet(nn.Module):
    """`depths` blocks in each of four stages, the first of `width` channels, each later one of twice as many."""

    def __init__(
        self,
        depths: tuple[int, ...],
        width: int = 64,
        num_classes: int = 1000,
        folded_stem: int = 0,
        *,
        channels: int = 3,
    ) -> None:
        super().__init__()
        self.folded_stem = folded_stem
        self.conv1 = nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        inputs = width
        for stage, depth in enumerate(depths):
            own = width << stage
            blocks = [
                Bottleneck(inputs if number == 0 else 4 * own, own, _stride(stage, number)) for number in range(depth)
            ]
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
            inputs = 4 * own
        self.num_stages = len(depths)
        self.fc = nn.Linear(inputs, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, Bottleneck):
                nn.init.zeros_(module.bn3.weight)  # blocks begin as their shortcut: large batches need it

    def forward(self, x: Tensor) -> Tensor:
        x = functional.conv2d(*fold(x, self.conv1.weight, self.folded_stem)) if self.folded_stem else self.conv1(x)
        x = functional.max_pool2d(functional.relu(self.bn1(x), inplace=True), 3, stride=2, padding=1)
        for stage in range(self.num_stages):
            x = self.get_submodule(f"layer{stage + 1}")(x)
        return self.fc(x.mean((2, 3)))


def _stride(stage: int, number: int) -> int:
    return 2 if stage > 0 and number == 0 else 1


def resnet50(num_classes: int = 1000, folded_stem: int = 0) -> ResNet:
    return ResNet((3, 4, 6, 3), 64, num_classes, folded_stem)
