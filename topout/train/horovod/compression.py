"""What travels in place of a gradient: the same, or half precision.

Not always a gain: on a link that is faster than the conversion, half precision costs time (docs/horovod.md).
"""

from typing import Any

import torch


class Compressor:
    """What a compression of the user's own offers, too."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The tensor that travels, and what is needed to undo it."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        raise NotImplementedError


class NoneCompressor(Compressor):
    """As it is."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor


class FP16Compressor(Compressor):
    """Floating point as half precision."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return (tensor.to(torch.float16) if tensor.dtype.is_floating_point else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor.to(ctx) if ctx is not None and ctx.is_floating_point else tensor


class Compression:
    """The choices that a script names."""

    none = NoneCompressor
    fp16 = FP16Compressor
