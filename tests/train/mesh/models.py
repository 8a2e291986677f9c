"""Small models for the tests of meshes: a transformer after the convention of the docs, and a ResNet with GroupNorm."""

import torch
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    def __init__(self, width, num_heads):
        super().__init__()
        self.num_heads, self.head_width = num_heads, width // num_heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (
            part(x).view(batch, length, self.num_heads, self.head_width).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(attended.transpose(1, 2).reshape(batch, length, -1))


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return self.down(functional.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, width, num_heads):
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.mlp = Attention(width, num_heads), Mlp(width)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Transformer(nn.Module):
    def __init__(self, num_blocks=4, width=16, num_heads=4, num_symbols=32, length=8):
        super().__init__()
        self.embedding = nn.Embedding(num_symbols, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, num_heads) for _ in range(num_blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_symbols, bias=False)
        self.apply(self.begin)

    @staticmethod
    def begin(module):
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.1)

    def embed(self, x):
        return self.embedding(x) + self.positions(torch.arange(x.shape[1], device=x.device))

    def sequence(self):
        return [self.embed, *self.blocks, self.norm, self.head]

    def forward(self, x):
        for part in self.sequence():
            x = part(x)
        return x


class Residual(nn.Module):
    def __init__(self, width, stride=1):
        super().__init__()
        self.first, self.second = nn.Conv2d(width, width, 3, stride, 1), nn.Conv2d(width, width, 3, 1, 1)
        self.norm, self.second_norm = nn.GroupNorm(2, width), nn.GroupNorm(2, width)
        self.short = nn.Conv2d(width, width, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x):
        y = self.second_norm(self.second(self.norm(self.first(x)).relu()))
        return (self.short(x) + y).relu()


def resnet():
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), nn.GroupNorm(2, 8), nn.ReLU()),
        nn.Sequential(Residual(8), Residual(8, 2)),
        nn.Sequential(Residual(8), Residual(8, 2)),
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)),
    )


LAYOUT = {
    "blocks.*.attention.query": "columns",
    "blocks.*.attention.key": "columns",
    "blocks.*.attention.value": "columns",
    "blocks.*.attention.out": "rows",
    "blocks.*.mlp.up": "columns",
    "blocks.*.mlp.down": "rows",
    "embedding": "rows",
    "head": "columns+gather",
}


def token_loss(outputs, targets):
    return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def tokens(step, size=16, length=8, num_symbols=32):
    generator = torch.Generator().manual_seed(step)
    drawn = torch.randint(num_symbols, (size, length + 1), generator=generator)
    return drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()


def images(step, size=16):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(size, 3, 8, 8, generator=generator), torch.randint(10, (size,), generator=generator)


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 3e-3),
}
