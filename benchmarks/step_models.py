"""The models of `step.py`: one of few large gradients, one of many small ones, one of equal layers, one that computes
next to nothing.
"""

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, num_in, num_out, stride):
        super().__init__()
        self.first = nn.Conv2d(num_in, num_out, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(num_out)
        self.second = nn.Conv2d(num_out, num_out, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(num_out)
        self.shortcut = nn.Identity()
        if stride != 1 or num_in != num_out:
            self.shortcut = nn.Sequential(nn.Conv2d(num_in, num_out, 1, stride, bias=False), nn.BatchNorm2d(num_out))

    def forward(self, x):
        out = functional.relu(self.first_norm(self.first(x)))
        return functional.relu(self.second_norm(self.second(out)) + self.shortcut(x))


class ResNet18(nn.Module):
    """11.2 million parameters in 62 tensors, for small images."""

    def __init__(self, num_classes=100):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
        widths = [64, 64, 128, 128, 256, 256, 512, 512]
        inputs = [64, *widths[:-1]]
        self.blocks = nn.Sequential(*[Block(i, o, 2 if i != o else 1) for i, o in zip(inputs, widths, strict=True)])
        self.head = nn.Linear(512, num_classes)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class DeepMLP(nn.Module):
    """0.42 million parameters in 202 tensors."""

    def __init__(self, depth=100, width=64, num_classes=100):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])
        self.head = nn.Linear(width, num_classes)

    def forward(self, x):
        for layer in self.layers:
            x = x + 0.1 * torch.relu(layer(x))
        return self.head(x)


def wide():
    """10.6 million parameters in 22 tensors; forward takes a third of computing."""
    layers = [layer for _ in range(10) for layer in (nn.Linear(1024, 1024), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(1024, 100))


def tiny():
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 100))


MODELS = {
    "resnet18": (ResNet18, (4, 3, 8, 8)),
    "resnet18-own": (ResNet18, (4, 3, 8, 8)),
    "deep": (DeepMLP, (32, 64)),
    "wide": (wide, (64, 1024)),
    "tiny": (tiny, (16, 64)),
}


def make(kind):
    """The same model on every rank, and this rank's own batch."""
    torch.manual_seed(0)
    build, shape = MODELS[kind]
    return build(), torch.randn(shape), torch.randint(0, 100, (shape[0],))
