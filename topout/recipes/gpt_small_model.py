"""A decoder-only transformer after GPT-2: learned positions, norms before each part, causal attention.

    GPT(num_blocks=12, width=768, num_heads=12, context=1024)     # 86.2 M parameters on bytes; GPT-2 small's 12 blocks

Made to be cut: `sequence()` says where a pipeline may, and heads are counted from the columns that a rank has, so that
query, key and value can be split by columns and `out` by rows. Not for generating text at speed: there is no cache of
keys and values.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional


class Attention(nn.Module):
    """Each position looks at itself and those before it."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_width = width // num_heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        # split by columns, a rank has some of the heads: as many as its columns hold
        query, key, value = (
            part(x).unflatten(-1, (-1, self.head_width)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(attended.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.gelu(self.up(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, num_heads)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = MLP(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class GPT(nn.Module):
    """Whole numbers below `num_symbols` in, (batch, length); scores of the next one out, (batch, length, num_symbols).

    `is_tied` makes the head use the embedding's weights, which a pipeline cannot cut.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        width: int,
        num_heads: int,
        context: int,
        num_symbols: int = 256,
        is_tied: bool = False,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_symbols, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, num_heads) for _ in range(num_blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_symbols, bias=False)
        if is_tied:
            self.head.weight = self.embedding.weight
        self.init_weights()

    def init_weights(self) -> None:
        """GPT-2's: small numbers, smaller still where a block adds to what passes through, so that depth adds up."""
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                adds_up = name.endswith(("attention.out", "mlp.down"))
                nn.init.normal_(module.weight, std=0.02 / math.sqrt(2 * len(self.blocks)) if adds_up else 0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def embed(self, symbols: Tensor) -> Tensor:
        return self.embedding(symbols) + self.positions(torch.arange(symbols.shape[1], device=symbols.device))

    def sequence(self) -> list[Callable[[Tensor], Tensor]]:
        """What forward applies, one after the other: where a pipeline may cut (docs/hybrid.md)."""
        return [self.embed, *self.blocks, self.norm, self.head]

    def forward(self, symbols: Tensor) -> Tensor:
        x = self.embed(symbols)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
